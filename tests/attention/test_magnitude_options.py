"""What `qk_norm` and the options of `AblationAttention` for magnitudes are for: kernels of any size. test_laplacian.py
compares them with their definitions."""

from typing import Any

import pytest
import torch

from laplacianformer._util.settings import entries
from laplacianformer.attention import AblationAttention, LaplacianAttention
from laplacianformer.attention._factors import Factors

from .oracle import build, tokens

SIZE = (6, 8)


def factors(distance: float = 1.0, training: bool = True, **options: Any) -> Factors:
    """Of a layer whose distances are those of a default one times a number."""
    torch.manual_seed(0)
    layer = AblationAttention(16, 2, grid=3, rope=False, solver="cholesky", **options).double().train(training)
    with torch.no_grad():
        layer.qkv.weight[:32] *= 20 * distance
    return layer.factors(tokens(SIZE), SIZE)


def spread(found: Factors) -> float:
    """The standard deviation of the whitened columns over the batch: about 1 where nothing caps the factor,
    somewhat less because rows are centred."""
    m = found.z.shape[-1]
    whitened = m * found.z - 1
    return whitened.std((0, 2)).median().item()


def test_a_relative_eps_whitens_columns_of_every_size() -> None:
    """A fixed one is larger than the variance of a small kernel, and what the attention says is lost."""
    sizes = [factors(distance, gain=1.0).c.mean().item() for distance in (0.05, 1)]
    assert sizes[0] > 0.3
    assert sizes[1] < 1e-4
    fixed = [spread(factors(distance, gain=1.0)) for distance in (0.05, 1)]
    relative = [spread(factors(distance, gain=1.0, relative_eps=1e-4)) for distance in (0.05, 1)]
    assert fixed[0] > 0.4
    assert fixed[1] < 0.1
    assert all(0.4 < found < 1.1 for found in relative)


def test_the_running_average_of_a_relative_eps_needs_no_other_buffer() -> None:
    """The same names of weights; and a batch that is the first is whitened alike in training and in evaluation."""
    layer = build(grid=3, relative_eps=0.05)
    assert layer.state_dict().keys() == build(grid=3).state_dict().keys()
    x = tokens(SIZE)
    in_training = layer.train()(x, SIZE)
    torch.testing.assert_close(layer.eval()(x, SIZE), in_training, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("gram", ["keys", "cross"])
def test_normalised_values_keep_constants_at_every_size_of_the_kernel(gram: str) -> None:
    """With (m/N) they are too small by how much a landmark's kernel with its keys is below 1."""
    for distance in (0.5, 1.0, 4.0):
        layer = AblationAttention(
            16, 2, grid=3, rope=False, solver="cholesky", normalised_values=True, gram=gram
        ).double()
        if gram == "cross":  # which the exact solver regularises otherwise
            layer.solver, layer.iterations = "newton_schulz", 60
        q, k = (distance * torch.randn(1, 2, 48, 8, dtype=torch.float64) for _ in range(2))
        constant = torch.full_like(q, 1.7)
        values = layer.decompose(q, k, SIZE).solve(constant)
        torch.testing.assert_close(values, torch.full_like(values, 1.7), rtol=1e-6, atol=1e-6)


def test_normalised_values_stay_of_the_order_of_the_values() -> None:
    sizes = {}
    for normalised in (False, True):
        found = factors(3.0, normalised_values=normalised)
        sizes[normalised] = found.landmark_values.square().mean().sqrt().item()
    plain = factors(0.1).landmark_values.square().mean().sqrt().item()
    assert sizes[False] < 0.3 * plain
    assert sizes[True] > 0.5 * plain


def test_normalised_queries_and_keys_keep_the_kernel_in_its_range() -> None:
    """From nothing to exp(-2) at the start, whatever the projections are."""
    for distance in (1e-2, 1.0, 100.0):
        c = factors(distance, qk_norm=True).c
        assert c.min() >= 0.999 * torch.tensor(-2.0).exp()
        assert c.mean() < 0.9
    assert factors(100.0).c.max() < 1e-4


@pytest.mark.parametrize(("kernel", "least"), [("laplacian", -2.0), ("gaussian", -2.0), ("polynomial", 0.0)])
def test_no_distance_is_above_twice_the_scale_at_the_start_in_the_norm_of_the_kernel(kernel: str, least: float) -> None:
    """Reached by a query and the opposite key, whose entries are all of one size."""
    layer = AblationAttention(16, 2, axes=1, kernel=kernel, rope=False, qk_norm=True).double()
    with torch.no_grad():
        layer.qkv.weight.zero_()
        layer.qkv.bias[:16], layer.qkv.bias[16:32] = 7.0, -7.0
    c = layer.factors(torch.randn(1, 4, 16, dtype=torch.float64), (4,)).c
    torch.testing.assert_close(c, torch.full_like(c, least).exp() * (least != 0), rtol=1e-3, atol=1e-6)


def test_the_fast_form_is_kept_and_padding_changes_nothing_there_either(calls: list[str]) -> None:
    torch.manual_seed(0)
    layer = LaplacianAttention(16, 2, axes=1, grid=3, qk_norm=True)
    x = torch.randn(2, 12, 16)
    padded, mask = torch.cat([x, torch.full((2, 5, 16), 9.0)], dim=1), (torch.arange(17) < 12).expand(2, -1)
    for training in (True, False):
        layer.train(training)
        with torch.set_grad_enabled(training):
            outs = layer(padded, (17,), mask)[:, :12], layer(x, (12,))
        torch.testing.assert_close(*outs, rtol=1e-4, atol=1e-5)
    assert calls == ["trained", "trained", "evaluated", "evaluated"]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_leading_tokens_are_normalised_too_in_the_fast_form(training: bool, calls: list[str]) -> None:
    """What the layer computes, and its gradients, are those of one that is given normalised queries and keys."""
    torch.manual_seed(0)
    layer = LaplacianAttention(16, 2, grid=3, prefix=2, qk_norm=True).train(training)
    plain = LaplacianAttention(16, 2, grid=3, prefix=2).double().train(training)
    plain.load_state_dict({**layer.state_dict(), **entries(plain.state_dict())}, strict=False)
    layer.qk_norm.query_scale.data.mul_(3)
    x = torch.cat([9 * torch.randn(2, 2, 16), torch.randn(2, 48, 16)], dim=1).requires_grad_(training)
    wide = x.detach().double().requires_grad_(training)
    with torch.set_grad_enabled(training):
        out = layer(x, SIZE)
        q, k, v = plain.project(wide, SIZE)
        q, k = (8**0.5 * part / part.norm(dim=-1, keepdim=True) for part in (q, k))
        mixed = plain.mix(1.5 * q, 0.5 * k, v, SIZE).transpose(1, 2).flatten(2)
        expected = plain.proj(mixed + plain.local(v, SIZE))
    assert calls == ["trained" if training else "evaluated"]
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)
    if training:
        for one in (out, expected):
            one.square().sum().backward()
        torch.testing.assert_close(x.grad.double(), wide.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("option", [{"relative_eps": 0.03}, {"normalised_values": True}, {"qk_norm": True}])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_padding_changes_nothing(option: dict[str, Any], training: bool) -> None:
    """A mask that leaves the first rows of a larger grid is the smaller grid."""
    layer = build(grid=3, iterations=40, **option).train(training)
    x = tokens((4, 8))
    padded = torch.cat([x, torch.full((2, 16, 16), 5.0, dtype=torch.float64)], dim=1)
    mask = (torch.arange(48) < 32).expand(2, -1)
    alone = layer(x, (4, 8))
    torch.testing.assert_close(layer(padded, SIZE, mask)[:, :32], alone, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("option", [{"relative_eps": 1e-4}, {"normalised_values": True}])
def test_kernels_that_are_nothing_to_the_machine_give_finite_gradients(option: dict[str, Any]) -> None:
    layer = AblationAttention(16, 2, grid=3, **option)
    with torch.no_grad():
        layer.qkv.weight[:32] *= 1e5
    x = tokens(SIZE, dtype=torch.float32).requires_grad_()
    out = layer(x, SIZE)
    found = [out, *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])]
    assert all(tensor.isfinite().all() for tensor in found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relative_eps": 0.0}, "AblationAttention: relative_eps must be greater than 0, got 0.0"),
        ({"relative_eps": 0.1, "whitening": None}, 'relative_eps needs whitening="running", got whitening=None'),
        ({"normalised_values": True, "kernel": "cosine"}, "needs a kernel of laplacian, gaussian, matern, got kernel="),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AblationAttention(16, 2, **options)


@pytest.mark.parametrize("options", [{"relative_eps": 0.03}, {"normalised_values": True}, {"qk_norm": True}])
def test_weights_of_other_magnitudes_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match=r"instead of|Unexpected key"):
        build(grid=3).load_state_dict(build(grid=3, **options).state_dict())
