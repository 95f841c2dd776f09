"""The variance of columns over a batch, and its gradient, against float64."""

import pytest
import torch

from laplacianformer import ops
from laplacianformer.ops import _cpu_extension as cpu_extension
from tests.ops.helpers import BACKENDS, BUDGET, DTYPES, assert_close, gradients, in_float64, layouts
from tests.pairwise import pairwise

# (B, heads, N, M): one row, one more and one less than the rows that are summed by themselves, odd widths.
SHAPES = [(1, 1, 1, 1), (3, 2, 1, 5), (2, 3, 255, 49), (2, 1, 257, 16), (1, 4, 600, 7), (2, 2, 5, 0)]


def oracle(x):
    centred = x - x.mean((0, 2), keepdim=True)
    return centred.square().mean((0, 2))


@pairwise({"backend": BACKENDS, "shape": SHAPES, "dtype": DTYPES}, indirect=["backend"])
def test_matches_the_definition(backend, poisoned_memory, shape, dtype):
    x = torch.rand(shape, dtype=torch.float64).to(dtype).requires_grad_()
    (exact,) = in_float64([x])
    grad = torch.randn(shape[1], shape[3], dtype=torch.float64)
    out = ops.column_variance(x, backend=backend)
    assert out.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert_close(out, oracle(exact), magnitude=0.1)
    ours = gradients(lambda x: ops.column_variance(x, backend=backend), [x], grad)
    (theirs,) = gradients(oracle, [exact], grad)
    assert_close(ours[0], theirs, magnitude=theirs.abs().max().item() + 1e-6 if theirs.numel() else None)


def test_gradcheck(backend):
    x = torch.rand(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: ops.column_variance(x, backend=backend), x)


def test_every_instruction_set(level):
    x = torch.rand(2, 3, 300, 33).requires_grad_()
    assert_close(ops.column_variance(x, backend="cpu"), oracle(x.double()), magnitude=0.1)
    assert cpu_extension.LEVELS[cpu_extension.level()] == level


def test_a_large_common_offset_loses_no_accuracy(backend):
    x = 1000 + torch.rand(2, 2, 700, 9, dtype=torch.float64).float()
    assert_close(ops.column_variance(x, backend=backend), oracle(x.double()), budget=8 * BUDGET[torch.float32])


def test_layouts(backend):
    x = torch.rand(2, 3, 40, 6, dtype=torch.float64)
    for view in layouts(x).values():
        assert_close(ops.column_variance(view, backend=backend), oracle(view))
    row = x[:, :, :1].expand(2, 3, 40, 6)
    assert_close(ops.column_variance(row, backend=backend), oracle(row), magnitude=1.0)


def test_same_bits_for_any_number_of_threads():
    x, threads = torch.rand(3, 2, 2000, 49), torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(ops.column_variance(x))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("shape", [(2, 3, 4), (0, 2, 3, 4), (2, 2, 0, 4)])
def test_bad_shapes(shape):
    with pytest.raises(ValueError, match=r"column_variance: x must be \(B, heads, N, M\) with rows in it, got"):
        ops.column_variance(torch.rand(shape))
