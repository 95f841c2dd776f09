"""Rotations inside the kernel ops give the same as rotating first, on every backend and instruction set."""

import pytest
import torch
from torch import Tensor

from laplacianformer import ops
from tests.ops.helpers import BACKENDS, assert_close, assert_matches, laplacian, layouts, leaves, peak_bytes
from tests.pairwise import pairwise

SCALE = 8.0
SHAPES = [
    ((), 1, 1, 2),
    ((2,), 5, 3, 6),
    ((2, 3), 17, 1, 34),
    ((1,), 131, 49, 32),
    ((2,), 3, 130, 10),
    ((1,), 70, 70, 4),
]


def rotation(n: int, d: int) -> tuple[Tensor, Tensor]:
    angle = torch.randn(n, d // 2, dtype=torch.float64) * 3
    return angle.cos(), angle.sin()


def rotated(x: Tensor, angles: tuple[Tensor, Tensor] | None) -> Tensor:
    """The definition: channel k + i * channel (k + d/2), times cos + i sin."""
    if angles is None:
        return x
    half = x.shape[-1] // 2
    pairs = torch.complex(x[..., :half], x[..., half:]) * torch.complex(*angles)
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def sides(which: str, n: int, m: int, d: int) -> dict[str, tuple[Tensor, Tensor] | None]:
    return {f"{side}_rotation": rotation(rows, d) if side in which else None for side, rows in (("x", n), ("y", m))}


def check_both(backend, which, batch, n, m, d, dtype):
    angles = sides(which, n, m, d)

    def kernel(x, y):
        return laplacian(rotated(x, angles["x_rotation"]), rotated(y, angles["y_rotation"]), SCALE)

    x, y, values = leaves((*batch, n, d), (*batch, m, d), (*batch, m, 5), dtype=dtype)
    terms = max(n, m)
    assert_matches(lambda *t: ops.laplacian_kernel(*t, SCALE, **angles, backend=backend), kernel, (x, y), terms)
    assert_matches(
        lambda *t: ops.laplacian_matmul(*t, SCALE, **angles, backend=backend),
        lambda x, y, values: kernel(x, y) @ values,
        (x, y, values),
        terms,
    )


@pairwise(
    {
        "backend": BACKENDS,
        "which": ["x", "y", "xy"],
        "batch, n, m, d": SHAPES,
        "dtype": [torch.float32, torch.float64],
    },
    indirect=["backend"],
)
@pytest.mark.usefixtures("poisoned_memory")
def test_values_and_gradients_are_those_of_rotated_rows(backend, which, batch, n, m, d, dtype):
    check_both(backend, which, batch, n, m, d, dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("which", "n", "m"), [("x", 131, 49), ("y", 49, 131), ("x", 5, 5)])
@pytest.mark.usefixtures("poisoned_memory")
def test_half_precision_is_not_rounded_between_rotation_and_kernel(which, n, m, dtype, level):
    check_both("cpu", which, (2,), n, m, 32, dtype)


@pytest.mark.parametrize("which", ["x", "y"])
@pytest.mark.parametrize(("n", "m"), [(300, 49), (49, 300)])
def test_every_instruction_set(level, which, n, m):
    check_both("cpu", which, (2,), n, m, 32, torch.float32)


@pytest.mark.parametrize(("n", "m"), [(0, 3), (3, 0), (0, 0)])
def test_no_rows(backend, n, m):
    x, y, values = leaves((2, n, 4), (2, m, 4), (2, m, 3), dtype=torch.float32)
    out = ops.laplacian_matmul(x, y, values, SCALE, **sides("xy", n, m, 4), backend=backend)
    assert torch.equal(out, torch.zeros(2, n, 3))
    out.sum().backward()
    assert not any(tensor.grad.abs().sum() for tensor in (x, y, values))
    assert ops.laplacian_kernel(x, y, SCALE, **sides("xy", n, m, 4), backend=backend).shape == (2, n, m)


@pytest.mark.parametrize("layout", ["transposed", "strided", "permuted"])
def test_memory_layout_does_not_change_the_result(layout, backend):
    x, y, values, angles = torch.randn(2, 9, 8), torch.randn(2, 4, 8), torch.randn(2, 4, 3), rotation(9, 8)
    other = [layouts(t)[layout] for t in (x, y, values)]
    strange = tuple(layouts(t.clone())["transposed"] for t in angles)
    plain = ops.laplacian_matmul(x, y, values, SCALE, x_rotation=angles, backend=backend)
    assert torch.equal(ops.laplacian_matmul(*other, SCALE, x_rotation=strange, backend=backend), plain)


def test_a_row_equal_to_a_rotated_row_has_kernel_one_and_no_gradient(backend):
    """x_n is y_n rotated back, so that its rotation gives y_n: the distance is 0 up to rounding."""
    y = torch.randn(1, 40, 8, dtype=torch.float64)
    cos, sin = rotation(40, 8)
    x = rotated(y, (cos, -sin))
    out = ops.laplacian_kernel(x, y, SCALE, x_rotation=(cos, sin), backend=backend)
    assert_close(out.diagonal(dim1=-2, dim2=-1), torch.ones(1, 40, dtype=torch.float64))


@pytest.mark.skipif(ops.backends()["cpu"] is not None, reason="needs the C++ extension")
def test_the_rotated_rows_are_never_stored():
    x, y, values, angles = (
        torch.randn(1, 20_000, 64),
        torch.randn(1, 2, 64),
        torch.randn(1, 20_000, 1),
        rotation(20_000, 64),
    )
    angles = tuple(t.float() for t in angles)
    used = peak_bytes(lambda: ops.laplacian_matmul(y, x, values, SCALE, y_rotation=angles, backend="cpu"))
    assert used < x.nbytes / 100


def test_the_number_of_angles_must_match_rows_and_pairs(backend):
    x, y = torch.zeros(5, 8), torch.zeros(4, 8)
    for name, rows in (("x_rotation", 4), ("y_rotation", 5)):
        with pytest.raises(ValueError, match=r"cos and sin must be \(N, d/2\)"):
            ops.laplacian_kernel(x, y, SCALE, **{name: rotation(rows, 8)}, backend=backend)


def test_compiled_equals_eager():
    x, y, values, angles = torch.randn(2, 9, 8), torch.randn(2, 4, 8), torch.randn(2, 4, 3), rotation(9, 8)

    def product(x, y, values):
        return ops.laplacian_matmul(x, y, values, SCALE, x_rotation=angles)

    compiled = torch.compile(product, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, y, values), product(x, y, values))
