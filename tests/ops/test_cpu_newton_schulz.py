"""newton_schulz of the `cpu` backend against the reference in float64, on every instruction set."""

from itertools import product

import pytest
import torch

from laplacianformer import ops
from laplacianformer.ops._cpu_extension import LEVELS
from tests.ops.helpers import assert_close, gradients, kernel_matrix, layouts
from tests.pairwise import pairwise

# Accumulation in float32 over some hundred terms, several products after each other; then rounding to the dtype.
BUDGET = {torch.float32: 2e-5, torch.float64: 1e-13, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def compare(w, iterations, start, budget):
    exact, grad = w.detach().double(), torch.randn(w.shape, dtype=torch.float64)
    expected = ops.newton_schulz(exact, iterations, start=start, backend="reference")
    actual = ops.newton_schulz(w, iterations, start=start, backend="cpu")
    assert actual.dtype == w.dtype
    assert_close(actual, expected, budget=budget)
    results = [
        gradients(lambda w, b=b: ops.newton_schulz(w, iterations, start=start, backend=b), [m.requires_grad_()], g)
        for m, b, g in ((w.detach(), "cpu", grad.to(w.dtype)), (exact, "reference", grad.to(w.dtype).double()))
    ]
    assert_close(results[0][0], results[1][0], budget=budget)


# How many rows are left over after whole vectors depends on m, the dtype and the instruction set together. What the
# models run is tried on every instruction set.
@pairwise(
    {
        "level, dtype": list(product(LEVELS, BUDGET)),
        "m": [1, 2, 7, 8, 17, 49],
        "start": ["identity", "transpose"],
        "iterations": [1, 2, 6],
    },
    also=[
        {"level, dtype": (level, dtype), "m": 49, "start": "identity", "iterations": 6}
        for level in LEVELS
        for dtype in (torch.float32, torch.bfloat16)
    ],
    indirect=["level"],
)
def test_matches_the_reference(level, poisoned_memory, m, iterations, start, dtype):
    compare(kernel_matrix(m, 4, 3).to(dtype), iterations, start, BUDGET[dtype])


@pytest.mark.parametrize("m", [127, 128, 129])
def test_around_the_largest_size_in_cpp(level, m):
    compare(kernel_matrix(m, 4, 2).float(), 3, "identity", 5e-5)


def test_matrices_that_are_not_symmetric(level):
    w = torch.eye(20, dtype=torch.float64) + torch.randn(2, 20, 20, dtype=torch.float64) / 20
    compare(w, 6, "transpose", 1e-12)


def test_layouts_and_batches(level):
    w = kernel_matrix(9, 4, 2, 3)
    for view in layouts(w).values():
        compare(view, 4, "identity", 1e-13)
    compare(w[:, :1].expand(2, 3, 9, 9), 4, "identity", 1e-13)
    assert ops.newton_schulz(w[:0], 4, backend="cpu").shape == (0, 3, 9, 9)


def test_equal_rows_share_the_gradient_of_the_norm(level):
    """Every row sum is the largest: of a matrix of ones, and of the identity."""
    compare(torch.ones(1, 5, 5, dtype=torch.float64), 3, "identity", 1e-13)
    compare(torch.eye(5, dtype=torch.float64)[None], 3, "transpose", 1e-13)


def test_a_bad_matrix_affects_no_other(level):
    w = kernel_matrix(12, 4, 3).float()
    clean = ops.newton_schulz(w, 6, start="identity", backend="cpu")
    w[1, 3, 4] = torch.nan
    out = ops.newton_schulz(w, 6, start="identity", backend="cpu")
    assert out[1].isnan().any()
    assert torch.equal(out[::2], clean[::2])
