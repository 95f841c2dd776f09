"""Scales near and beyond the limits of float32, against the definition in float64."""

import pytest
import torch
from torch import Tensor

from laplacianformer import ops
from laplacianformer.ops._cpu_extension import LEVELS
from tests.ops.helpers import laplacian
from tests.pairwise import pairwise

SCALES = (1e-320, 1e-300, 1e-46, 1e-44, 1e-40, 1e-38, 7e-38, 1e-31, 1e-29, 1e30, 1e37, 1e39, 1e46, 1e300)
# Of the order of the smallest and the largest numbers of float32, zeros, and an infinity.
ROWS = torch.tensor([0.0, 1e-45, 4e-44, 1e-40, 3e-38, 1e-30, 1.0, 1e30, 1e37, torch.inf], dtype=torch.float32)
WIDTHS = (1, 3)

on_cpu = pytest.mark.skipif(ops.backends()["cpu"] is not None, reason=str(ops.backends()["cpu"]))


def check(scale: float, width: int, backend: str, dtype: torch.dtype) -> None:
    """Row i is ROWS[i] / width in every feature. Infinite rows have no distance from each other."""
    rows = (ROWS / width).to(dtype)[:, None].expand(-1, width).contiguous()
    found = ops.laplacian_kernel(rows, rows, scale, backend=backend)
    expected = laplacian(rows.double(), rows.double(), scale)
    assert found[-1, -1].isnan()
    assert torch.equal(found[:-1].diagonal(), torch.ones(len(ROWS) - 1, dtype=dtype))
    product = ops.laplacian_matmul(rows, rows[:-1], torch.eye(len(ROWS) - 1, dtype=dtype), scale, backend=backend)
    for actual in (found[:, :-1], product):
        assert_close(actual, expected[:, :-1])


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """Numbers below the smallest normal one may be 0; in float32, distances may have lost digits."""
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=torch.finfo(torch.float32).tiny)


@on_cpu
@pairwise(
    {"level": LEVELS, "scale": SCALES, "width": WIDTHS, "dtype": [torch.float32, torch.float64]}, indirect=["level"]
)
def test_the_cpu_backend(level: str, scale: float, width: int, dtype: torch.dtype) -> None:
    check(scale, width, "cpu", dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", SCALES)
def test_the_reference(scale: float, dtype: torch.dtype) -> None:
    check(scale, 3, "reference", dtype)


@on_cpu
@pytest.mark.parametrize("scale", [1e-300, 1e-40, 1e40, 1e300])
def test_equal_rows_have_no_gradient(level: str, scale: float) -> None:
    x = torch.ones(5, 3, requires_grad=True)
    ops.laplacian_kernel(x, torch.ones(4, 3), scale, backend="cpu").sum().backward()
    assert torch.equal(x.grad, torch.zeros(5, 3))
