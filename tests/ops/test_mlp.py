"""mlp against its definition in float64: in blocks of rows and as a composition, values, gradients and memory."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from laplacianformer import ops
from laplacianformer.ops.linear import onednn
from laplacianformer.ops.mlp import cpu, reference
from tests.ops.helpers import BACKENDS, DTYPES, assert_matches, in_float64, leaves, peak_bytes
from tests.pairwise import pairwise

ROWS = onednn._ROWS  # fixtures make it smaller
# Leading dimensions and the three widths.
SHAPES = [
    ((2, 37), 16, 40, 16),
    ((), 3, 5, 2),
    ((1,), 1, 1, 1),
    ((0,), 4, 8, 4),
    ((2, 0, 3), 4, 8, 4),
    ((65,), 8, 33, 7),
]


def exact(x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor) -> Tensor:
    hidden = x @ weight1.mT + bias1
    return (hidden * torch.special.erfc(-hidden / math.sqrt(2)) / 2) @ weight2.mT + bias2


def parts(leading: tuple[int, ...], d: int, width: int, out: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return leaves((*leading, d), (width, d), (width,), (out, width), (out,), dtype=dtype)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 8 rows, so that there are many of them, and a last one that is not full."""
    monkeypatch.setattr(cpu, "_LEAST_ROWS", 8)
    monkeypatch.setattr(cpu, "_BLOCK_BYTES", 0)


@pairwise(
    {"backend": BACKENDS, "shape": SHAPES, "dtype": DTYPES, "products": ["blas", "onednn"]},
    indirect=["backend", "products"],
)
@pytest.mark.usefixtures("poisoned_memory", "small_blocks")
def test_values_and_gradients_match_float64(shape, dtype, backend, products):
    terms = 8 if dtype.itemsize == 2 else 1  # half precision rounds the hidden numbers, too
    assert_matches(lambda *t: ops.mlp(*t, backend=backend), exact, parts(*shape, dtype=dtype), terms * 4)


@pytest.mark.usefixtures("small_blocks")
def test_memory_layout_does_not_change_the_result(products: str) -> None:
    given = [tensor.detach() for tensor in parts((3, 20), 16, 40, 16)]
    expected = ops.mlp(*given)
    spread = [torch.stack([tensor, torch.full_like(tensor, torch.nan)], -1)[..., 0] for tensor in given]
    transposed = [tensor.mT.contiguous().mT if tensor.ndim > 1 else tensor for tensor in given]
    for other in (spread, transposed):
        torch.testing.assert_close(ops.mlp(*other), expected)


@pytest.mark.parametrize("needed", range(5))
@pytest.mark.usefixtures("small_blocks")
def test_only_what_needs_a_gradient_gets_one_and_it_is_the_same(needed: int, products: str) -> None:
    given = parts((2, 20), 16, 40, 16)
    every = torch.autograd.grad(ops.mlp(*given).square().sum(), given)
    frozen = [tensor.detach().requires_grad_(index == needed) for index, tensor in enumerate(given)]
    ops.mlp(*frozen).square().sum().backward()
    assert [tensor.grad is not None for tensor in frozen] == [index == needed for index in range(5)]
    assert torch.equal(frozen[needed].grad, every[needed])


@pytest.mark.parametrize("widths", [(64, 256), (128, 1024)])
def test_same_bits_for_every_number_of_threads(
    widths: tuple[int, int], products: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums over rows are cut by the shape alone: into blocks, and those of 2048 rows into two ranges."""
    monkeypatch.setattr(onednn, "_ROWS", ROWS)
    given = parts((2, 1500), *widths, widths[0])
    before, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            out = ops.mlp(*given)
            found.append([out.detach(), *torch.autograd.grad(out, given, out.detach().sin())])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))


@pytest.mark.parametrize("tokens", [49, 257])
def test_a_matrix_has_the_same_bits_whatever_else_is_in_the_batch(tokens: int) -> None:
    """By the rule of this machine; 257 tokens are one more than a block."""
    x, *weights = (tensor.detach() for tensor in parts((7, tokens), 512, 2048, 512))
    alone = [ops.mlp(matrix[None], *weights)[0] for matrix in x]
    for batch in (2, 7):
        together = ops.mlp(x[:batch], *weights)
        assert all(torch.equal(one, other) for one, other in zip(together, alone, strict=False))


def test_derivatives_of_gradients_match_float64() -> None:
    given = parts((9,), 4, 12, 4)

    def second(function, tensors):
        slopes = torch.autograd.grad(function(*tensors).square().sum(), tensors, create_graph=True)
        return torch.autograd.grad(sum(slope.square().sum() for slope in slopes), tensors, materialize_grads=True)

    for one, other in zip(second(ops.mlp, given), second(exact, in_float64(given)), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-4 * other.abs().max().item())


def test_batched_gradients_and_counters_see_the_composition() -> None:
    given, grads = parts((9,), 4, 12, 4), torch.randn(3, 9, 4)
    batched = torch.autograd.grad(ops.mlp(*given), given, grads, is_grads_batched=True)
    for index, grad in enumerate(grads):
        for one, many in zip(torch.autograd.grad(ops.mlp(*given), given, grad), batched, strict=True):
            torch.testing.assert_close(many[index], one)
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        ops.mlp(*given)
    assert counter.get_total_flops() == 2 * 9 * 12 * (4 + 4)


def test_autocast_rounds_as_it_does_for_linear_layers() -> None:
    x, weight1, bias1, weight2, bias2 = (tensor.detach() for tensor in parts((9,), 4, 12, 4))
    with torch.autocast("cpu", torch.bfloat16):
        out = ops.mlp(x, weight1, bias1, weight2, bias2)
        expected = F.linear(F.gelu(F.linear(x, weight1, bias1)), weight2, bias2)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, expected, rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("autocast", [False, True], ids=["stored", "autocast"])
@pytest.mark.parametrize("learned", [False, True], ids=["frozen", "parameters"])
@pytest.mark.usefixtures("poisoned_memory", "small_blocks")
def test_blocks_in_half_precision_round_as_the_composition_does(
    dtype: torch.dtype, autocast: bool, learned: bool
) -> None:
    x, *weights = parts((2, 37), 16, 40, 16, dtype=torch.float32 if autocast else dtype)
    given = [x.detach(), *(weight.requires_grad_(learned) for weight in weights)]
    with torch.no_grad(), torch.autocast("cpu", dtype, enabled=autocast):
        out, expected = ops.mlp(*given), reference.mlp(*given)
    assert out.dtype == expected.dtype == dtype
    torch.testing.assert_close(out, expected, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.usefixtures("poisoned_memory")
def test_gradients_under_autocast_are_those_of_the_composition(dtype: torch.dtype) -> None:
    given = parts((2, 37), 16, 40, 16)
    grad = torch.randn(2, 37, 16)
    found = []
    for mlp in (ops.mlp, reference.mlp):
        with torch.autocast("cpu", dtype):
            out = mlp(*given)
        found.append([out, *torch.autograd.grad(out, given, grad.to(dtype))])
    assert [one.dtype for one in found[0]] == [dtype, *[torch.float32] * 5]
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_derivatives_of_gradients_under_autocast_are_those_of_the_composition() -> None:
    given = parts((9,), 4, 12, 4)

    def second(mlp):
        with torch.autocast("cpu", torch.bfloat16):
            out = mlp(*given)
        slopes = torch.autograd.grad(out.float().square().sum(), given, create_graph=True)
        return torch.autograd.grad(sum(slope.square().sum() for slope in slopes), given, materialize_grads=True)

    for one, other in zip(second(ops.mlp), second(reference.mlp), strict=True):
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.02 * other.abs().max().item())


@pytest.mark.skipif(ops.backends()["cpu"] is not None, reason=str(ops.backends()["cpu"]))
def test_in_half_precision_hidden_numbers_are_not_stored() -> None:
    rows, width = 160_000, 128
    given = [tensor.detach() for tensor in parts((rows,), 8, width, 8)]
    hidden, small = 2 * rows * width, 2 * rows * 8
    with torch.autocast("cpu", torch.bfloat16):
        assert peak_bytes(lambda: ops.mlp(*given)) < 2 * small + hidden / 4


@pytest.mark.skipif(ops.backends()["cpu"] is not None, reason=str(ops.backends()["cpu"]))
def test_hidden_numbers_are_stored_only_for_a_gradient_and_then_once() -> None:
    rows, width = 40_000, 128
    given = parts((rows,), 8, width, 8)
    hidden, small = 4 * rows * width, 4 * rows * 8
    with torch.no_grad():
        assert peak_bytes(lambda: ops.mlp(*given)) < 2 * small + hidden / 4
    assert peak_bytes(lambda: ops.mlp(*given).sum().backward()) < 1.25 * hidden + 6 * small


@pytest.mark.skipif(ops.backends()["cpu"] is not None, reason=str(ops.backends()["cpu"]))
def test_in_half_precision_the_numbers_kept_for_the_gradient_are_the_hidden_ones_once() -> None:
    rows, width = 40_000, 128
    given, kept = parts((rows,), 8, width, 8), []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autocast("cpu", torch.bfloat16), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        ops.mlp(*given)
    assert sum(tensor.nbytes for tensor in kept) < 1.25 * 2 * rows * width


def test_shapes_that_do_not_fit_are_refused() -> None:
    x, weight1, bias1, weight2, bias2 = (tensor.detach() for tensor in parts((9,), 4, 12, 4))
    for wrong in ((x[:, :3], weight1, bias1, weight2, bias2), (x, weight1, bias2, weight2, bias2)):
        with pytest.raises(ValueError, match=r"mlp: expected x \(\.\.\., d\), weight1 \(width, d\)"):
            ops.mlp(*wrong)
