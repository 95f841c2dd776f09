"""What holds for every baseline: sizes, dtypes, gradients, one image at a time, one compiled graph, one slot."""

from contextlib import nullcontext
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from laplacianformer import ops
from laplacianformer.attention import ATTENTIONS
from tests.model.helpers import NAMES

from .baselines import BASELINES, CASES, build
from .oracle import Size, tokens

SIZES: list[Size] = [(7, 5), (1, 1), (3, 1), (1, 9), (16, 17)]


def extremes(size: Size) -> dict[str, Tensor]:
    x = tokens(size, dim=32, dtype=torch.float32)
    return {
        "ordinary": x,
        "large": 30 * x,
        "all tokens zero": torch.zeros_like(x),
        "equal tokens": x[:, :1].expand_as(x),
        "one far away": torch.cat([x[:, :-1], 1e4 * x[:, -1:]], dim=1),
    }


@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_outputs_and_gradients_are_finite_at_every_size(name: str, options: dict[str, Any], mixed: bool) -> None:
    layer = build(name, dim=32, **options).float()
    for size in SIZES:
        for kind, x in extremes(size).items():
            x = x.clone().requires_grad_()
            with torch.autocast("cpu", torch.bfloat16) if mixed else nullcontext():
                out = layer(x, size)
            assert out.dtype == (torch.bfloat16 if mixed else torch.float32)
            found = [out, *torch.autograd.grad(out.float().square().mean(), [x, *layer.parameters()])]
            assert all(tensor.isfinite().all() for tensor in found), (size, kind)


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_autocast_changes_the_linear_maps_only(name: str, options: dict[str, Any]) -> None:
    if name == "softmax":
        pytest.skip("softmax attention runs in the precision of autocast")
    layer = build(name, dim=32, **options).float()
    q, k, v = (torch.randn(1, 2, 72, 16) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = layer.mix(q, k, v, (9, 8))
    assert torch.equal(mixed, layer.mix(q, k, v, (9, 8)))


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_gradients_equal_finite_differences(name: str, options: dict[str, Any]) -> None:
    """SOFT's gradient is that of the pseudo-inverse, not of the steps: they agree where Newton has converged."""
    if "iterations" in ops_of(name):
        options = {"grid": 2, "iterations": 40, **options}
    layer = build(name, dim=8, **options)
    x = 2 * tokens((3, 4), dim=8)
    assert torch.autograd.gradcheck(
        lambda x, *_: layer(x, (3, 4)), (x.requires_grad_(), *layer.parameters()), fast_mode=True
    )


def ops_of(name: str) -> set[str]:
    return set(vars(ATTENTIONS[name](8, 2)))


@pytest.mark.parametrize("others", ["other images", "nan"])
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_one_image_does_not_depend_on_the_others(name: str, options: dict[str, Any], others: str) -> None:
    """In evaluation, bit for bit (reference backend), where landmarks are fewer than tokens and where they are not."""
    for size in ((9, 8), (5, 3)):
        layer, x = build(name, dim=32, **options).float().eval(), tokens(size, batch=3, dim=32, dtype=torch.float32)
        with ops.use_backend("reference"), torch.no_grad():
            alone = layer(x, size)[1]
            replaced = torch.randn_like(x) if others == "other images" else torch.full_like(x, torch.nan)
            replaced[1] = x[1]
            assert torch.equal(layer(replaced, size)[1], alone)


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_one_compiled_graph_equals_eager(name: str, options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    layer, size = build(name, **options), (9, 8)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=False)
    found, wanted = [], []
    for call, results in ((compiled, found), (layer, wanted)):
        x = tokens(size).requires_grad_()
        out = call(x, size)
        results += [out, *torch.autograd.grad((out * tokens(size, seed=3)).sum(), [x, *layer.parameters()])]
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", BASELINES)
def test_every_size_can_be_created_with_it(name: str) -> None:
    with torch.device("meta"):
        models = [timm.create_model(size, attention=name) for size in NAMES]
        assert models[0](torch.empty(2, 3, 40, 56)).shape == (2, 1000)
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in models]
    assert counts == sorted(counts)
    assert 1e6 < counts[0] < 1.6e6
    assert 60e6 < counts[-1] < 85e6


# Beside the projections that all mixers share.
OWN = {"performer": {"omega"}, "hedgehog": {"query_map", "key_map"}}


@pytest.mark.parametrize("name", BASELINES)
def test_only_the_mixing_changes(name: str) -> None:
    """The same parameters, from the same seed, with the same names as softmax attention's."""
    torch.manual_seed(0)
    softmax = ATTENTIONS["softmax"](32, 2, tied=name.startswith("soft+") or name == "soft").state_dict()
    torch.manual_seed(0)
    state = ATTENTIONS[name](32, 2).state_dict()
    assert set(state) - set(softmax) == OWN.get(name, set())
    assert all(torch.equal(state[key], softmax[key]) for key in softmax)


@pytest.mark.parametrize(
    ("name", "arguments", "error", "message"),
    [
        ("soft", {"grid": 0}, ValueError, "SoftAttention: grid must be at least 1, got 0"),
        ("soft++", {"kernel": "cauchy"}, ValueError, "kernel must be one of 'gaussian', 'laplacian', got 'cauchy'"),
        ("soft++", {"scale": 0}, ValueError, "SoftPlusPlusAttention: scale must be greater than 0, got 0"),
        ("skyformer", {"eps": -1.0}, ValueError, "SkyformerAttention: eps must be greater than 0, got -1.0"),
        ("nystromformer", {"iterations": 0}, ValueError, "iterations must be at least 1, got 0"),
        ("nystromformer", {"grid": 2.5}, TypeError, "grid must be an integer, got float"),
        ("performer", {"features": True}, TypeError, "PerformerAttention: features must be an integer, got bool"),
        ("linear", {"grid": 7}, TypeError, "unexpected keyword argument 'grid'"),
    ],
)
def test_bad_arguments_are_refused(name: str, arguments: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        ATTENTIONS[name](32, 2, **arguments)
