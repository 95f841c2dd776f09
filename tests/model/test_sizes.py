"""Parameters and multiplications of the named sizes against the paper's table."""

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.model.helpers import NAMES, create

# Reported by the paper: millions of parameters, GMACs of a 224 x 224 image.
PAPER = {
    "laplacianformer_tiny": (12.1, 2.1),
    "laplacianformer_small": (25.7, 4.8),
    "laplacianformer_medium": (46.3, 7.43),
    "laplacianformer_large": (63.1, 11.2),
    "laplacianformer_huge": (78.5, 15.5),
}
# What this package comes to: it must not drift within the tolerance either.
COMPUTED = {
    "laplacianformer_tiny": (12.06, 2.14),
    "laplacianformer_small": (25.77, 4.82),
    "laplacianformer_medium": (46.37, 7.54),
    "laplacianformer_large": (63.10, 11.31),
    "laplacianformer_huge": (78.54, 15.50),
}

ops = torch.ops.laplacianformer


def product_only(x_shape, y_shape, values_shape, *_, **__):
    *batch, n, _ = x_shape
    return 2 * torch.Size(batch).numel() * n * y_shape[-2] * values_shape[-1]


def nothing(*_, **__):
    return 0


@pytest.fixture(scope="module")
def on_meta():
    """Models without memory: counting needs shapes only."""
    with torch.device("meta"):
        return {name: timm.create_model(name).eval() for name in NAMES}


def macs(model, height=224, width=224):
    """Convolutions and matrix products; L1 distances and the small inverse apart, as the usual counters do."""
    rules = {ops.laplacian_matmul: product_only, ops.laplacian_kernel: nothing, ops.newton_schulz: nothing}
    # A formula of the package's own is called with shapes, as these are.
    counter = FlopCounterMode(display=False, custom_mapping=rules)
    with torch.no_grad(), counter:
        model(torch.empty(1, 3, height, width, device="meta"))
    return counter.get_total_flops() / 2


@pytest.mark.parametrize("name", PAPER)
def test_parameters_are_those_of_the_paper(on_meta, name):
    millions = sum(parameter.numel() for parameter in on_meta[name].parameters()) / 1e6
    assert millions == pytest.approx(PAPER[name][0], rel=0.005)
    assert millions == pytest.approx(COMPUTED[name][0], abs=0.006)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPER)
def test_multiplications_are_those_of_the_paper(on_meta, name):
    giga = macs(on_meta[name]) / 1e9
    assert giga == pytest.approx(PAPER[name][1], rel=0.025)
    assert giga == pytest.approx(COMPUTED[name][1], abs=0.01)


def test_nano_is_small():
    assert sum(parameter.numel() for parameter in create("laplacianformer_nano").parameters()) <= 1.5e6


def test_sizes_grow_with_their_names(on_meta):
    parameters = [sum(p.numel() for p in model.parameters()) for model in on_meta.values()]
    assert parameters == sorted(parameters)


def test_cost_grows_no_faster_than_the_pixels(on_meta):
    """Where every stage has all its landmarks, four times the pixels cost at most four times as much."""
    model = on_meta["laplacianformer_tiny"]
    small, large = macs(model, 256, 256), macs(model, 1024, 1024)
    assert large <= 16 * small
    assert large >= 15.5 * small


def test_softmax_costs_more_than_the_pixels():
    """The same count sees quadratic cost where there is one."""
    with torch.device("meta"):
        model = timm.create_model("laplacianformer_tiny", attention="softmax").eval()
    assert macs(model, 1024, 1024) > 30 * macs(model, 256, 256)
