"""What holds for every baseline: sizes, dtypes, gradients, one image at a time, one compiled graph, one slot."""

from contextlib import nullcontext
from functools import cache
from itertools import cycle
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from laplacianformer import ops
from laplacianformer.attention import ATTENTIONS
from laplacianformer.attention.baselines._nystrom import KernelAttention, LandmarkAttention
from tests.model.helpers import NAMES

from ..oracle import Size, tokens
from .baselines import BASELINES, CASES, build

QUADRATIC = ("softmax", "spatial-reduction")
SIZES: list[Size] = [(7, 5), (1, 1), (3, 1), (16, 17)]


def inputs() -> list[tuple[str, Size, Tensor]]:
    """Ordinary tokens at every size, and extreme ones at a size with more tokens than landmarks."""
    x = tokens((9, 8), dim=32, dtype=torch.float32)
    extremes = {
        "large": 30 * x,
        "all tokens zero": torch.zeros_like(x),
        "equal tokens": x[:, :1].expand_as(x),
        "one far away": torch.cat([x[:, :-1], 1e4 * x[:, -1:]], dim=1),
    }
    ordinary = [("ordinary", size, tokens(size, dim=32, dtype=torch.float32)) for size in SIZES]
    return [*ordinary, *((kind, (9, 8), given) for kind, given in extremes.items())]


@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_outputs_and_gradients_are_finite(name: str, options: dict[str, Any], mixed: bool) -> None:
    """One layer for all sizes."""
    layer = build(name, dim=32, **options).float()
    for kind, size, given in inputs():
        x = given.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16) if mixed else nullcontext():
            out = layer(x, size)
        assert out.dtype == (torch.bfloat16 if mixed else torch.float32)
        found = [out, *torch.autograd.grad(out.float().square().mean(), [x, *layer.parameters()])]
        assert all(tensor.isfinite().all() for tensor in found), (kind, size)


@pytest.mark.parametrize(("name", "options"), [case for case in CASES if case[0] not in QUADRATIC], ids=str)
def test_autocast_changes_the_linear_maps_only(name: str, options: dict[str, Any]) -> None:
    """Feature maps, kernels and inverses stay in float32; softmax attention and PVT's run as autocast says."""
    layer = build(name, dim=32, **options).float()
    q, k, v = (torch.randn(1, 2, 72, 16) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = layer.mix(q, k, v, (9, 8))
    assert torch.equal(mixed, layer.mix(q, k, v, (9, 8)))


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_gradients_equal_finite_differences(name: str, options: dict[str, Any]) -> None:
    """SOFT's gradient is that of the pseudo-inverse, not of the steps: they agree where Newton has converged."""
    if issubclass(ATTENTIONS[name], LandmarkAttention):
        options = {"grid": 2, "iterations": 40, **options}
    layer, x = build(name, dim=8, **options), (2 * tokens((3, 4), dim=8)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: layer(x, (3, 4)), (x, *layer.parameters()), fast_mode=True)


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


@pytest.mark.parametrize("name", BASELINES[1:])
@pytest.mark.slow
def test_one_compiled_graph_equals_eager(name: str) -> None:
    """Backward too where ops of the package's own are inside. Without positions, whose tracing takes as long again."""
    torch._dynamo.reset()
    few = {"iterations": 2} if issubclass(ATTENTIONS[name], LandmarkAttention) else {}
    layer, size, backward = build(name, rope=False, **few), (9, 8), issubclass(ATTENTIONS[name], KernelAttention)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=False)
    found, wanted = [], []
    for call, results in ((compiled, found), (layer, wanted)):
        x = tokens(size).requires_grad_()
        with torch.set_grad_enabled(backward):
            results.append(call(x, size))
        if backward:
            weights = tokens(size, seed=3)
            results += torch.autograd.grad((results[0] * weights).sum(), [x, *layer.parameters()])
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@cache
def one_block_a_stage(size: str, attention: str) -> nn.Module:
    with torch.device("meta"):
        return timm.create_model(size, attention=attention, depths=(1, 1, 1, 1))


def soft_parameters(dim: int) -> int:
    """One projection less; a 3 x 3 filter and a norm for heads of 32 channels."""
    return 9 * 32 * 32 + 2 * 32 - dim * (dim + 1)


OWN_PARAMETERS = {"soft": soft_parameters, "soft++": soft_parameters, "hedgehog": lambda dim: 2 * 32 * dim}


@pytest.mark.parametrize("name", BASELINES)
def test_every_width_can_be_created_with_it(name: str) -> None:
    """One block per stage of nano and of tiny, whose widths all larger sizes have; softmax's parameters and its own."""
    for size in NAMES[:2]:
        model, softmax = one_block_a_stage(size, name), one_block_a_stage(size, "softmax")
        assert model(torch.empty(2, 3, 40, 56, device="meta")).shape == (2, 1000)
        dims = [stage.blocks[0].attention.dim for stage in model.stages]
        assert parameters(model) == parameters(softmax) + sum(OWN_PARAMETERS.get(name, lambda dim: 0)(d) for d in dims)


@pytest.mark.parametrize("size", NAMES)
def test_every_size_can_be_created_with_all_of_them(size: str) -> None:
    """At full depth, with one mixer after the other in its blocks."""
    mixers = cycle(ATTENTIONS[name] for name in BASELINES)
    with torch.device("meta"):
        model = timm.create_model(size, attention=lambda dim, heads: next(mixers)(dim, heads))
    expected = {"nano": 1.4e6, "tiny": 12e6, "small": 26e6, "medium": 46e6, "large": 63e6, "huge": 79e6}
    assert parameters(model) == pytest.approx(expected[size.rpartition("_")[2]], rel=0.05)


# Beside the projections that all mixers share.
LEARNED = {"landmark_filter.weight", "landmark_norm.weight", "landmark_norm.bias"}
OWN = {"performer": {"omega"}, "hedgehog": {"query_map", "key_map"}, "soft": LEARNED, "soft++": LEARNED}


@pytest.mark.parametrize("name", BASELINES)
def test_only_the_mixing_changes(name: str) -> None:
    """The same parameters, from the same seed, with the same names as softmax attention's."""
    torch.manual_seed(0)
    softmax = ATTENTIONS["softmax"](32, 2, tied=name in ("soft", "soft++")).state_dict()
    torch.manual_seed(0)
    state = ATTENTIONS[name](32, 2).state_dict()
    assert set(state) - set(softmax) == OWN.get(name, set())
    assert all(torch.equal(state[key], softmax[key]) for key in softmax if key != "_extra_state")


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
