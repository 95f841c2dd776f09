"""rotate against complex multiplication, on every backend."""

import pytest
import torch
from torch import Tensor

from laplacianformer import ops
from tests.ops.helpers import BACKENDS, BUDGET, DTYPES, assert_close, layouts
from tests.pairwise import pairwise

SHAPES = [(5, 8), (2, 3, 7, 32), (1, 1, 2), (0, 4, 6), (2, 0, 4), (3, 130, 10)]


def angles(n: int, d: int) -> Tensor:
    return torch.randn(n, d // 2, dtype=torch.float64) * 10


def rotated(x: Tensor, angle: Tensor) -> Tensor:
    """The definition: channel k + i * channel (k + d/2), times e^(i angle)."""
    half = x.shape[-1] // 2
    pairs = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([pairs.real, pairs.imag], dim=-1)


@pairwise({"backend": BACKENDS, "shape": SHAPES, "dtype": DTYPES}, indirect=["backend"])
@pytest.mark.usefixtures("poisoned_memory")
def test_values_and_gradient_match_complex_multiplication(shape, dtype, backend):
    angle = angles(*shape[-2:])
    x = torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_()
    out = ops.rotate(x, angle.cos(), angle.sin(), backend=backend)
    assert out.dtype == dtype
    assert out.is_contiguous()
    budget = 2 * BUDGET[dtype]  # a sum of two products that may cancel
    assert_close(out.detach(), rotated(x.detach().double(), angle), budget=budget)
    grad = torch.randn(shape, dtype=torch.float64).to(dtype)
    (ours,) = torch.autograd.grad(out, x, grad)
    assert_close(ours, rotated(grad.double(), -angle), budget=budget)


@pytest.mark.parametrize("layout", ["transposed", "strided", "permuted"])
def test_memory_layout_does_not_change_the_result(layout, backend):
    x, angle = torch.randn(2, 3, 6, 8), angles(6, 8)
    plain = ops.rotate(x, angle.cos(), angle.sin(), backend=backend)
    assert torch.equal(ops.rotate(layouts(x)[layout], angle.cos(), angle.sin(), backend=backend), plain)


def test_a_slice_of_a_projection_is_read_in_place(backend):
    parts = torch.randn(2, 6, 3, 4, 8).permute(2, 0, 3, 1, 4)  # (3, B, heads, N, d) of (B, N, 3, heads, d)
    angle = angles(6, 8)
    found = ops.rotate(parts[1], angle.cos(), angle.sin(), backend=backend)
    assert_close(found, rotated(parts[1].double(), angle))


def test_first_and_second_derivatives_match_finite_differences(backend):
    angle, x = angles(3, 4), torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)

    def cubed(x):
        return ops.rotate(x, angle.cos(), angle.sin(), backend=backend) ** 3

    assert torch.autograd.gradcheck(cubed, x)
    assert torch.autograd.gradgradcheck(cubed, x)


def test_compiled_equals_eager_with_no_custom_op_in_the_graph():
    angle, x = angles(5, 8), torch.randn(2, 5, 8, requires_grad=True)
    names = []

    def record(graph, inputs):
        names.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    compiled = torch.compile(ops.rotate, backend=record, fullgraph=True)
    torch.testing.assert_close(compiled(x, angle.cos(), angle.sin()), ops.rotate(x, angle.cos(), angle.sin()))
    assert not any("laplacianformer" in name for name in names)


# opcheck itself looks at gradients of tensors that have none.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning")
def test_opcheck():
    angle = angles(5, 8).float()
    x = torch.randn(2, 5, 8, requires_grad=True)
    torch.library.opcheck(torch.ops.laplacianformer.rotate.default, (x, angle.cos(), angle.sin(), ""))


@pytest.mark.parametrize(
    ("x", "cos", "sin"),
    [
        ((2, 5, 7), (5, 3), (5, 3)),
        ((2, 5, 8), (5, 3), (5, 4)),
        ((2, 5, 8), (5, 4), (4, 4)),
        ((5, 8), (2, 5, 4), (5, 4)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(x, cos, sin):
    with pytest.raises(ValueError, match=r"cos and sin must be \(N, d/2\)"):
        ops.rotate(torch.zeros(x), torch.zeros(cos), torch.zeros(sin))
