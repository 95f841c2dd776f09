"""LaplacianAttention against its definition: outputs and all gradients, for every option."""

from typing import Any

import pytest
import torch
from torch.func import functional_call

from laplacianformer import LaplacianAttention

from . import oracle
from .oracle import build, tokens

OPTIONS: dict[str, dict[str, Any]] = {
    "product": {"iterations": 40},
    "product, no rope, gain learned": {"iterations": 40, "rope": False, "gain": "learned"},
    "product, whitening None": {"iterations": 40, "whitening": None, "gain": 2.5},
    "product, scale and eps": {"iterations": 40, "scale": 1.3, "eps": 0.2},
    "product, exact": {"grid": 8},
    "product, normalised queries and keys": {"iterations": 40, "qk_norm": True},
    "cholesky": {"solver": "cholesky"},
    "newton_schulz": {"solver": "newton_schulz", "iterations": 40},
    "conjugate_gradient": {"solver": "conjugate_gradient", "iterations": 20},
    "gaussian": {"kernel": "gaussian", "scale": 1.5, "solver": "cholesky"},
    "cross, ridge": {"gram": "cross", "solver": "cholesky"},
    "cross, newton_schulz": {"gram": "cross", "solver": "newton_schulz", "iterations": 60},
    "cross, conjugate_gradient": {"gram": "cross", "solver": "conjugate_gradient", "iterations": 40},
    "whitening instance": {"whitening": "instance", "solver": "cholesky"},
    "whitening full": {"whitening": "full", "solver": "cholesky"},
    "whitening None": {"whitening": None, "solver": "cholesky"},
    "gaussian, instance": {"kernel": "gaussian", "whitening": "instance", "solver": "cholesky"},
    "no rope": {"rope": False, "solver": "cholesky"},
    "tied": {"tied": True, "solver": "cholesky"},
    "tied, cross": {"tied": True, "gram": "cross", "solver": "cholesky"},
    "conv landmarks": {"landmarks": "conv", "solver": "cholesky"},
    "conv landmarks, cross": {"landmarks": "conv", "gram": "cross", "solver": "cholesky"},
    "gain": {"gain": 2.5, "solver": "cholesky"},
    "gain zero": {"gain": 0, "solver": "cholesky"},
    "gain learned": {"gain": "learned", "solver": "cholesky"},
    "gain learned, full": {"gain": "learned", "whitening": "full", "solver": "cholesky"},
    "scale and eps": {"scale": 1.3, "eps": 0.2, "solver": "cholesky"},
    "relative eps": {"relative_eps": 0.03, "solver": "cholesky"},
    "normalised values": {"normalised_values": True, "solver": "cholesky"},
    "normalised values, cross": {"normalised_values": True, "gram": "cross", "iterations": 60},
    "normalised values, exact": {"normalised_values": True, "grid": None},
    "normalised queries and keys": {"qk_norm": True, "solver": "cholesky"},
    "normalised queries and keys, tied": {"qk_norm": True, "tied": True, "solver": "cholesky"},
    "all magnitudes": {"relative_eps": 1e-3, "normalised_values": True, "qk_norm": True, "iterations": 40},
    "ratio": {"grid": None, "ratio": 2, "solver": "cholesky"},
    "ratio, no rope": {"grid": None, "ratio": 3, "rope": False, "solver": "cholesky"},
    "exact": {"grid": None},
    "exact, cross": {"grid": None, "gram": "cross"},
    "exact, conv": {"grid": None, "landmarks": "conv", "solver": "cholesky"},
}


def with_default_grid(options: dict[str, Any]) -> dict[str, Any]:
    return {"grid": 3, **options}


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("size", [(5, 7), (8, 2)], ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_output_and_gradients_equal_the_definition(name: str, size: tuple[int, int], training: bool) -> None:
    options = with_default_grid(OPTIONS[name])
    layer = build(**options).train(training)
    assert (type(layer) is LaplacianAttention) == name.startswith("product")
    x = tokens(size).requires_grad_()
    names = [key for key, _ in layer.named_parameters()]
    state = {key: value.detach().clone() for key, value in layer.state_dict().items()}
    for key in names:
        state[key].requires_grad_()

    expected = oracle.evaluate(x, size, state, training=training, **options).out
    probe = tokens(size, seed=2)
    wanted = torch.autograd.grad((expected * probe).sum(), [x, *(state[key] for key in names)], allow_unused=True)
    out = layer(x, size)
    grads = torch.autograd.grad((out * probe).sum(), [x, *layer.parameters()])

    torch.testing.assert_close(out, expected, rtol=1e-8, atol=1e-8)
    for key, grad, want in zip(["x", *names], grads, wanted, strict=True):
        want = torch.zeros_like(grad) if want is None else want
        torch.testing.assert_close(grad, want, rtol=1e-7, atol=1e-7, msg=lambda m, key=key: f"gradient of {key}: {m}")


def test_the_options_make_a_difference() -> None:
    """Else the comparison above could pass with an option ignored on both sides."""
    size, x = (5, 7), tokens((5, 7))
    base = build(grid=3, solver="cholesky").eval()
    shared = base.state_dict()
    for name, options in OPTIONS.items():
        if name in ("product", "cholesky", "newton_schulz", "conjugate_gradient", "exact, cross"):
            continue
        if name == "relative eps":  # is in the statistics of training: test_magnitude_options.py
            continue
        other = build(**with_default_grid(options)).eval()
        own = other.state_dict()
        taken = {key: shared[key] for key in own if key in shared and shared[key].shape == own[key].shape}
        other.load_state_dict({**own, **taken, "_extra_state": own["_extra_state"]})
        assert (other(x, size) - base(x, size)).abs().max() > 1e-4, name


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize(
    "options",
    [
        {"whitening": "running"},
        {"whitening": "instance", "gain": "learned"},
        {"whitening": "full", "rope": False},
        {"landmarks": "conv", "solver": "cholesky"},
        {"gram": "cross", "solver": "newton_schulz"},
        {"kernel": "gaussian", "solver": "conjugate_gradient", "iterations": 20},
    ],
    ids=str,
)
def test_gradients_equal_finite_differences(options: dict[str, Any], training: bool) -> None:
    """Also for few solver steps, where the definition's exact inverse says nothing."""
    layer = build(dim=8, heads=2, grid=2, **options).train(training)
    size = (3, 3)
    parameters = dict(layer.named_parameters())

    def call(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        return functional_call(layer, dict(zip(parameters, values, strict=True)), (x, size))

    x = tokens(size, dim=8).requires_grad_()
    inputs = (x, *(p.detach().clone().requires_grad_() for p in parameters.values()))
    assert torch.autograd.gradcheck(call, inputs, eps=1e-6, atol=1e-6, rtol=1e-4, fast_mode=True)


def test_every_single_gradient_equals_finite_differences() -> None:
    """The slow check, entry by entry, of the default options on a tiny training layer."""
    layer = build(dim=4, heads=1, grid=2).train()
    x = tokens((3, 2), dim=4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: layer(x, (3, 2)), (x, *layer.parameters()), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("size", [[7, 7], torch.Size((7, 7))], ids=["list", "torch.Size"])
def test_the_size_may_be_any_pair(size: Any) -> None:
    layer, x = build().eval(), tokens((7, 7))
    assert torch.equal(layer(x, size), layer(x, (7, 7)))


def test_tokens_need_not_be_contiguous() -> None:
    layer, x = build(grid=3), tokens((4, 5))
    strided = x.transpose(0, 1).contiguous().transpose(0, 1)
    assert not strided.is_contiguous()
    torch.testing.assert_close(layer(strided, (4, 5)), layer(x, (4, 5)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
def test_qkv_bias_is_as_asked(bias: bool) -> None:
    layer = build(qkv_bias=bias)
    assert (layer.qkv.bias is not None) == bias
    assert layer(tokens((3, 3)), (3, 3)).shape == (2, 9, 16)


def test_dropout_acts_after_the_projection_and_in_training_only() -> None:
    layer, x = build(whitening=None, proj_drop=0.5), tokens((6, 6))
    kept = layer.eval()(x, (6, 6))
    dropped = layer.train()(x, (6, 6))
    zero = dropped == 0
    assert 0.3 < zero.double().mean() < 0.7
    torch.testing.assert_close(dropped[~zero], 2 * kept[~zero], rtol=1e-12, atol=1e-12)
