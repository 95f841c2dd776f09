"""What a mask promises: padding changes nothing, for the layer and for every other mixer."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from laplacianformer.attention import ATTENTIONS, AblationAttention, GridAttention, LaplacianAttention

DIM, HEADS = 32, 2
MIXERS = [*ATTENTIONS, "gaussian"]


def build(name: str, axes: int, **options: Any) -> GridAttention:
    torch.manual_seed(0)
    if name == "gaussian":
        return AblationAttention(DIM, HEADS, axes=axes, kernel="gaussian", **options)
    return ATTENTIONS[name](DIM, HEADS, axes=axes, **options)


def padded(items: list[Tensor], size: tuple[int, ...], fill: float = 0.0) -> tuple[Tensor, Tensor]:
    """Items (*their own size, DIM) in the corner of a larger grid: tokens (B, N, DIM) and their mask."""
    tokens = torch.full((len(items), *size, DIM), fill, dtype=items[0].dtype)
    mask = torch.zeros(len(items), *size, dtype=torch.bool)
    for index, item in enumerate(items):
        corner = (index, *(slice(length) for length in item.shape[:-1]))
        tokens[corner], mask[corner] = item, True
    return tokens.flatten(1, -2), mask.flatten(1)


def items_of(axes: int) -> list[Tensor]:
    """Three items; the last one is so small that every token of it is a landmark."""
    sizes = {1: [(90,), (71,), (5,)], 2: [(11, 9), (8, 10), (3, 2)], 3: [(3, 6, 5), (5, 4, 7), (2, 2, 3)]}[axes]
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(*size, DIM, generator=generator) for size in sizes]


SIZES = {1: [(90,), (131,)], 2: [(11, 10), (16, 13)], 3: [(5, 6, 7), (6, 9, 7)]}


def run(layer: GridAttention, items: list[Tensor], size: tuple[int, ...], fill: float = 0.0) -> dict[str, Any]:
    """Outputs and gradients of the tokens of each item, and of the parameters."""
    layer = copy.deepcopy(layer)
    tokens, mask = padded(items, size, fill)
    tokens.requires_grad_()
    out = layer(tokens, size, mask)
    weights = [torch.randn(item.shape, generator=torch.Generator().manual_seed(2)).to(item) for item in items]
    (out * padded(weights, size)[0]).sum().backward()
    assert tokens.grad is not None
    assert not out[~mask].any(), "padding must give exact zeros"
    assert not tokens.grad[~mask].any(), "padding must get exact zeros"
    found: dict[str, Any] = {
        "parameters": [p.grad for p in layer.parameters()],
        "statistics": [buffer for name, buffer in layer.named_buffers() if "running_var" in name],
    }
    for name, x in (("outputs", out.detach()), ("gradients", tokens.grad)):
        found[name] = [x[index][mask[index]] for index in range(len(items))]
    return found


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("name", MIXERS)
def test_more_padding_changes_nothing(name: str, axes: int, training: bool) -> None:
    layer, items = build(name, axes).train(training).double(), [item.double() for item in items_of(axes)]
    small, large = (run(layer, items, size) for size in SIZES[axes])
    for part in small:
        torch.testing.assert_close(large[part], small[part], rtol=1e-6, atol=1e-7, msg=lambda t, p=part: f"{p}: {t}")


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_more_padding_changes_nothing_in_float32(axes: int, training: bool) -> None:
    """On the backend that is used: with C++ kernels, those."""
    layer, items = build("laplacian", axes).train(training), items_of(axes)
    small, large = (run(layer, items, size) for size in SIZES[axes])
    for part in small:
        torch.testing.assert_close(large[part], small[part], rtol=1e-3, atol=1e-4, msg=lambda t, p=part: f"{p}: {t}")


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("more", [1, 7, 100])
def test_padding_by_any_amount_changes_nothing(more: int, axes: int, training: bool) -> None:
    """Along the last axis. The first item fills a sequence without it, and is padded with it."""
    layer = build("laplacian", axes).train(training).double()
    items, size = [item.double() for item in items_of(axes)], SIZES[axes][0]
    small, large = (run(layer, items, (*size[:-1], size[-1] + by)) for by in (0, more))
    for part in small:
        torch.testing.assert_close(large[part], small[part], rtol=1e-6, atol=1e-7, msg=lambda t, p=part: f"{p}: {t}")


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("name", MIXERS)
def test_an_item_is_in_a_batch_what_it_is_alone(name: str, axes: int) -> None:
    """In float64: the inverse of some mixers is so ill-conditioned that float32 shows its rounding alone."""
    items = [item.double() for item in items_of(axes)]
    compare_with_alone(build(name, axes).eval().double(), items, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_an_item_is_in_a_batch_what_it_is_alone_in_float32(axes: int) -> None:
    """On the backend that is used: with C++ kernels, those."""
    compare_with_alone(build("laplacian", axes).eval(), items_of(axes), rtol=1e-3, atol=1e-4)


def compare_with_alone(layer: GridAttention, items: list[Tensor], rtol: float, atol: float) -> None:
    size = SIZES[layer.axes][1]
    tokens, mask = padded(items, size)
    out = layer(tokens, size, mask)
    for index, item in enumerate(items):
        alone = layer(item.flatten(0, -2)[None], tuple(item.shape[:-1]))
        torch.testing.assert_close(out[index][mask[index]], alone[0], rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", MIXERS)
def test_a_nan_in_the_padding_stays_there(name: str) -> None:
    layer, items = build(name, 1).train(), items_of(1)
    clean, dirty = (run(layer, items, (100,), fill) for fill in (0.0, math.nan))
    for part in clean:
        torch.testing.assert_close(dirty[part], clean[part], rtol=0, atol=0)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", MIXERS)
def test_an_item_without_tokens_gives_zeros(name: str, training: bool) -> None:
    layer = build(name, 1).train(training)
    tokens = torch.randn(3, 90, DIM, requires_grad=True)
    mask = torch.ones(3, 90, dtype=torch.bool)
    mask[1] = False
    out = layer(tokens, (90,), mask)
    out.square().sum().backward()
    assert not out[1].any()
    assert out.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in [tokens, *layer.parameters()])


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("size", [(99,), (11, 9), (3, 11, 3)], ids=str)
@pytest.mark.parametrize("name", MIXERS)
def test_a_mask_of_all_tokens_is_no_mask_bit_for_bit(name: str, size: tuple[int, ...], training: bool) -> None:
    layer = build(name, len(size)).train(training)
    tokens = torch.randn(2, 99, DIM)
    other = copy.deepcopy(layer)
    assert torch.equal(layer(tokens, size, torch.ones(2, 99, dtype=torch.bool)), other(tokens, size))
    assert all(torch.equal(one, two) for one, two in zip(layer.buffers(), other.buffers(), strict=True))


@pytest.mark.parametrize("name", ["softmax", "linear", "performer", "cosformer", "hedgehog", "inline", "nystromformer"])
def test_weights_over_the_tokens_that_count_sum_to_one(name: str) -> None:
    """Equal values come out as they went in, whatever the queries and keys are."""
    layer, mask = build(name, 1), torch.rand(3, 90, generator=torch.Generator().manual_seed(4)) < 0.7
    q, k = torch.randn(2, 3, HEADS, 90, DIM // HEADS)
    value = torch.randn(DIM // HEADS)
    v = value.expand(3, HEADS, 90, -1).masked_fill(~mask[:, None, :, None], 0)
    if name == "nystromformer":
        layer.iterations = 30  # type: ignore[assignment]
    out = layer.double().mix(q.double(), k.double(), v.double(), (90,), mask)
    counted = mask[:, None, :, None].expand_as(out)
    torch.testing.assert_close(out[counted], value.double().expand_as(out)[counted], rtol=1e-6, atol=1e-6)


def weights(layer: GridAttention, q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    """The mixing of one item without positions as a matrix, (heads, tokens that count, tokens that count)."""
    layer.rope, tokens = False, q.shape[-2]
    identity = torch.eye(tokens, dtype=torch.float64).masked_fill(~mask[0][:, None], 0).expand(1, HEADS, -1, -1)
    return layer.double().mix(q, k, identity, (tokens,), mask)[0][:, mask[0]][..., mask[0]].detach()


def one_item(tokens: int = 30, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and a mask with holes."""
    generator = torch.Generator().manual_seed(4)
    q, k = scale * torch.randn(2, 1, HEADS, tokens, DIM // HEADS, generator=generator, dtype=torch.float64)
    return q, k, torch.rand(1, tokens, generator=generator) < 0.7


@pytest.mark.parametrize("name", ["soft", "soft++"])
def test_soft_stays_symmetric_and_positive_on_the_tokens_that_count(name: str) -> None:
    q, _, mask = one_item()
    s = weights(build(name, 1, grid=8), q, q, mask)[0]
    torch.testing.assert_close(s, s.mT, rtol=1e-6, atol=1e-8)
    assert torch.linalg.eigvalsh(s).min() > -1e-8


def test_nystromformer_is_softmax_where_every_token_that_counts_is_a_landmark() -> None:
    q, k, mask = one_item()
    found = weights(build("nystromformer", 1, grid=30, iterations=60), q, k, mask)
    torch.testing.assert_close(found, weights(build("softmax", 1), q, k, mask), rtol=1e-6, atol=1e-8)
    fewer = weights(build("nystromformer", 1, grid=4, iterations=60), q, k, mask)
    assert (fewer - found).abs().max() > 1e-2


def test_skyformer_is_its_kernel_where_every_token_that_counts_is_a_landmark() -> None:
    q, k, mask = one_item()
    layer = build("skyformer", 1, grid=30)
    found = weights(layer, q, k, mask)
    exact = layer.kernel(q, k)[0][:, mask[0]][..., mask[0]]  # type: ignore[operator]
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-8)
    fewer = weights(build("skyformer", 1, grid=4), q, k, mask)
    assert (fewer - found).abs().max() > 1e-2


def test_the_normalisation_of_soft_plus_plus_lowers_its_norm_on_the_tokens_that_count() -> None:
    q, _, mask = one_item()
    soft, normalised = (weights(build(name, 1, grid=8), q, q, mask) for name in ("soft", "soft++"))
    assert (torch.linalg.matrix_norm(normalised, 2) < torch.linalg.matrix_norm(soft, 2)).all()


def test_skyformer_stays_below_its_kernel_on_the_tokens_that_count() -> None:
    """What it leaves of the kernel is positive semi-definite, where queries are keys."""
    q, _, mask = one_item()
    layer = build("skyformer", 1, grid=4, iterations=40)
    found = weights(layer, q, q, mask)
    rest = layer.kernel(q, q)[0][:, mask[0]][..., mask[0]] - found  # type: ignore[operator]
    assert torch.linalg.eigvalsh((rest + rest.mT) / 2).min() > -1e-9
    assert torch.linalg.eigvalsh((rest + rest.mT) / 2).max() > 0.1


def test_hedgehog_compares_two_distributions_of_the_tokens_that_count() -> None:
    q, k, mask = one_item()
    layer = build("hedgehog", 1)
    found = weights(layer, q, k, mask)
    phi_q, phi_k = (torch.cat([x.softmax(-1), (-x).softmax(-1)], dim=-1)[0][:, mask[0]] for x in (q, k))  # maps are I
    products = phi_q @ phi_k.mT
    torch.testing.assert_close(found, products / products.sum(-1, keepdim=True))


def test_performer_approaches_softmax_over_the_tokens_that_count() -> None:
    q, k, mask = one_item(scale=0.5)
    wanted = weights(build("softmax", 1), q, k, mask)
    few, many = (
        (weights(build("performer", 1, features=count), q, k, mask) - wanted).square().mean().sqrt()
        for count in (16, 4096)
    )
    assert many < few / 6
    assert many < 0.05 * wanted.square().mean().sqrt()


def test_weights_of_cosformer_fall_with_the_distance_of_the_tokens_that_count() -> None:
    """For equal tokens, on either side."""
    q, _, mask = one_item()
    q = q[:, :, :1].abs().expand_as(q)
    found = weights(build("cosformer", 1), q, q, mask)[0]
    for row in range(len(found)):
        assert (found[row, row:].diff() < 0).all()
        assert (found[row, : row + 1].diff() > 0).all()


def test_inline_stays_injective_where_linear_attention_is_not() -> None:
    q, k, mask = one_item()
    q = q.abs()
    gap = {
        name: (weights(build(name, 1), q, k, mask) - weights(build(name, 1), 2 * q + 1, k, mask)).abs().amax(-1)
        for name in ("linear", "inline")
    }
    assert gap["linear"].max() < 1e-12
    assert gap["inline"].min() > 1e-6


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (torch.ones(2, 9), TypeError, "mask must be bool, True where a token counts, got torch.float32"),
        (torch.ones(2, 8, dtype=torch.bool), ValueError, r"mask must be \(2, 9\), one per token, got \(2, 8\)"),
        (torch.ones(3, 9, dtype=torch.bool), ValueError, r"mask must be \(2, 9\), one per token, got \(3, 9\)"),
        (torch.ones(2, 9, dtype=torch.bool, device="meta"), ValueError, "mask must be on the device of the tokens"),
        ([[True] * 9] * 2, TypeError, "mask must be a tensor, got list"),
    ],
    ids=["dtype", "tokens", "batch", "device", "list"],
)
def test_masks_that_do_not_fit_are_refused(mask: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        LaplacianAttention(DIM, HEADS)(torch.randn(2, 9, DIM), (3, 3), mask)
