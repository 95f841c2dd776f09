"""Each op as PyTorch sees it: registration, compilation, export, FLOPs, autocast."""

import os
import shutil

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from laplacianformer import ops
from laplacianformer.ops.newton_schulz import reference as newton_schulz_reference
from tests.ops.helpers import kernel_matrix, layouts
from tests.pairwise import pairwise

library = torch.ops.laplacianformer


def tensor(*shape, dtype=torch.float32):
    return torch.rand(*shape).to(dtype)


ANGLES = torch.rand(5, 2), torch.rand(5, 2)

# Name: the op, the shapes of its tensors, and the rest of its arguments.
OPS = {
    "laplacian_kernel": (library.laplacian_kernel, [(2, 5, 4), (2, 4, 4)], (None, None, 4.0, "")),
    "laplacian_kernel_backward": (
        library.laplacian_kernel_backward,
        [(2, 5, 4), (2, 5, 4), (2, 4, 4), (2, 5, 4)],
        (None, None, 4.0, ""),
    ),
    "laplacian_kernel, rotated": (library.laplacian_kernel, [(2, 5, 4), (2, 4, 4)], (*ANGLES, 4.0, "cpu")),
    "laplacian_matmul": (library.laplacian_matmul, [(2, 5, 4), (2, 4, 4), (2, 4, 6)], (None, None, 4.0, "")),
    "laplacian_matmul_backward": (
        library.laplacian_matmul_backward,
        [(2, 5, 6), (2, 5, 4), (2, 4, 4), (2, 4, 6)],
        (None, None, 4.0, ""),
    ),
    "laplacian_matmul, rotated": (
        library.laplacian_matmul,
        [(2, 5, 4), (2, 4, 4), (2, 4, 6)],
        (*ANGLES, 4.0, "cpu"),
    ),
    "column_variance": (library.column_variance, [(2, 3, 5, 4)], ("",)),
    "newton_schulz, transpose": (library.newton_schulz, [(2, 5, 5)], (3, 1e-2, "transpose", "exact", "")),
    "newton_schulz, identity": (library.newton_schulz, [(2, 5, 5)], (3, 1e-2, "identity", "implicit", "")),
    "newton_schulz_backward": (library.newton_schulz_backward, [(2, 5, 5), (2, 5, 5)], (3, 1e-2, "transpose", "")),
    "conjugate_gradient": (library.conjugate_gradient, [(2, 5, 5), (2, 5, 3)], (3,)),
    "inverse_sqrt": (library.inverse_sqrt, [(2, 5, 5)], (1e-2,)),
    "inverse_sqrt_backward": (library.inverse_sqrt_backward, [(2, 5, 5), (2, 5, 5), (2, 5), (2, 5, 5)], (0.1,)),
}


@pairwise(
    {
        "name": list(OPS),
        "layout": ["plain", "transposed", "strided", "permuted"],
        "dtype": [torch.float32, torch.bfloat16],
    }
)
# opcheck itself looks at gradients of tensors that have none.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning")
def test_opcheck(name, layout, dtype):
    op, shapes, rest = OPS[name]
    if "cpu" in rest and ops.backends()["cpu"]:
        pytest.skip(ops.backends()["cpu"])
    tensors = [tensor(*shape, dtype=dtype) for shape in shapes]
    if layout != "plain":
        tensors = [layouts(t)[layout] for t in tensors]
    checks = ["test_schema", "test_faketensor"]
    if not name.endswith("_backward"):  # the gradient of a gradient is refused
        checks += ["test_autograd_registration", "test_aot_dispatch_dynamic"]
        tensors = [t.detach().requires_grad_() for t in tensors]
    torch.library.opcheck(op.default, (*tensors, *rest), test_utils=checks)


def spd(w):
    return w @ w.mT / w.shape[-1]


# Name: a function of two tensors (b, n, d) and (b, m, d).
FUNCTIONS = {
    "laplacian_kernel": lambda x, y: ops.laplacian_kernel(x, y, 4.0),
    "gaussian_kernel": lambda x, y: ops.gaussian_kernel(x, y, 4.0),
    "laplacian_matmul": lambda x, y: ops.laplacian_matmul(x, y, y, 4.0),
    "newton_schulz, exact": lambda x, y: ops.newton_schulz(spd(x)) @ x + y.sum(),
    "newton_schulz, implicit": lambda x, y: (
        ops.newton_schulz(spd(x), start="identity", gradient="implicit") @ x + y.sum()
    ),
    "conjugate_gradient": lambda x, y: ops.conjugate_gradient(spd(x), x, 6, 1e-1) + y.sum(),
    "ridge_solve": lambda x, y: ops.ridge_solve(spd(x), x, 1e-1) + y.sum(),
    "cholesky_solve": lambda x, y: ops.cholesky_solve(spd(x), x, 1e-1) + y.sum(),
    "inverse_sqrt": lambda x, y: ops.inverse_sqrt(spd(x), 1e-1) @ x + y.sum(),
}
SHAPES = [((2, 5, 3), (2, 7, 3)), ((3, 6, 4), (3, 5, 4)), ((4, 9, 8), (4, 11, 8))]


def values_and_gradients(function, x, y):
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    out = function(x, y)
    return out.detach(), *torch.autograd.grad(out.square().sum(), (x, y))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.slow
def test_compiles_as_one_graph_with_dynamic_shapes_forward_and_backward(name):
    torch._dynamo.reset()
    compiled = torch.compile(FUNCTIONS[name], fullgraph=True, dynamic=True, backend="aot_eager")
    for index, (x_shape, y_shape) in enumerate(SHAPES):
        x, y = torch.randn(x_shape), torch.randn(y_shape)
        with torch.compiler.set_stance("fail_on_recompile" if index else "default"):
            ours = values_and_gradients(compiled, x, y)
        for a, b in zip(ours, values_and_gradients(FUNCTIONS[name], x, y), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="inductor needs a C++ compiler")
@pytest.mark.slow
def test_inductor_agrees_with_eager_on_permuted_inputs():
    """Inductor relies on the strides that the fake implementations promise. With our ops only, it compiles no C++."""
    torch._dynamo.reset()

    def function(x, y):
        return ops.laplacian_matmul(x, y, ops.newton_schulz(ops.laplacian_kernel(x, y, 4.0), 3).mT, 4.0)

    x, y = layouts(torch.randn(2, 5, 3))["permuted"], layouts(torch.randn(2, 5, 3))["transposed"]
    compiled = torch.compile(function, fullgraph=True)
    ours, theirs = (values_and_gradients(f, x, y) for f in (compiled, function))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_compiles_when_the_scale_is_an_argument():
    torch._dynamo.reset()
    compiled = torch.compile(ops.laplacian_kernel, fullgraph=True, backend="aot_eager", dynamic=True)
    x, y = torch.randn(4, 3), torch.randn(5, 3)
    for scale in (2.5, 4):
        torch.testing.assert_close(compiled(x, y, scale), ops.laplacian_kernel(x, y, scale))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_exports_with_dynamic_shapes(name):
    class Module(torch.nn.Module):
        def forward(self, x, y):
            return FUNCTIONS[name](x, y)

    n, m = torch.export.Dim("n", min=2), torch.export.Dim("m", min=2)
    program = torch.export.export(
        Module(), (torch.randn(2, 5, 3), torch.randn(2, 7, 3)), dynamic_shapes={"x": {1: n}, "y": {1: m}}
    )
    x, y = torch.randn(2, 9, 3), torch.randn(2, 4, 3)
    torch.testing.assert_close(program.module()(x, y), FUNCTIONS[name](x, y), rtol=1e-4, atol=1e-5)


def flops(function):
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def test_flops_of_the_kernels_are_those_counted_by_hand():
    b, n, m, d, v = 2, 5, 7, 3, 4
    x, y, values = torch.randn(b, n, d), torch.randn(b, m, d), torch.randn(b, m, v)
    distances = b * n * m * d * 3  # subtract, absolute value, add
    product = b * n * m * v * 2  # multiply, add
    slopes = b * n * m * d * 5  # subtract, sign, multiply, add to dx, subtract from dy
    assert flops(lambda: ops.laplacian_kernel(x, y, 4.0)) == distances
    assert flops(lambda: ops.laplacian_matmul(x, y, values, 4.0)) == distances + product
    assert flops(lambda: ops.gaussian_kernel(x, y, 4.0)) == b * n * m * d * 2

    x, y, values = (t.requires_grad_() for t in (x, y, values))
    assert flops(lambda: ops.laplacian_kernel(x, y, 4.0).sum().backward()) == distances + slopes
    backward = distances + slopes + 2 * product  # the kernel again; gradients of values and of the kernel
    assert flops(lambda: ops.laplacian_matmul(x, y, values, 4.0).sum().backward()) == distances + product + backward


@pytest.mark.parametrize("iterations", [1, 2, 6])
@pytest.mark.parametrize("start", ["transpose", "identity"])
def test_flops_of_newton_schulz_are_those_of_the_matrix_products_that_run(start, iterations):
    w = torch.rand(2, 5, 5, requires_grad=True)
    run = lambda: ops.newton_schulz(w, iterations, start=start)
    forward = flops(lambda: newton_schulz_reference.forward(w.detach(), iterations, 1e-2, start))
    backward = flops(lambda: newton_schulz_reference.backward(w.detach(), w.detach(), iterations, 1e-2, start))
    assert flops(run) == forward == iterations * 2 * (2 * 2 * 5**3)
    assert flops(lambda: run().sum().backward()) == forward + backward


def test_flops_of_conjugate_gradient_are_one_product_per_step():
    assert flops(lambda: ops.conjugate_gradient(torch.eye(5), torch.rand(2, 5, 3), 4, 1e-2)) == 4 * 2 * 2 * 5 * 5 * 3


FLOAT32_ISLANDS = {name: function for name, function in FUNCTIONS.items() if name != "laplacian_matmul"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FLOAT32_ISLANDS)
def test_autocast_gives_float32_results_and_nothing_is_rounded_to_half_precision(name, dtype):
    w = kernel_matrix(6, 4, 2).to(dtype)
    function = {
        "laplacian_kernel": lambda w: ops.laplacian_kernel(w, w, 4.0),
        "gaussian_kernel": lambda w: ops.gaussian_kernel(w, w, 4.0),
        "newton_schulz, exact": ops.newton_schulz,
        "newton_schulz, implicit": lambda w: ops.newton_schulz(w, gradient="implicit"),
        "conjugate_gradient": lambda w: ops.conjugate_gradient(w, w, 6, 1e-1),
        "ridge_solve": lambda w: ops.ridge_solve(w, w, 1e-1),
        "cholesky_solve": lambda w: ops.cholesky_solve(w, w, 1e-1),
        "inverse_sqrt": lambda w: ops.inverse_sqrt(w, 1e-1),
    }[name]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = function(w)
    assert out.dtype == torch.float32
    assert torch.equal(out, function(w.float()))


@pytest.mark.parametrize("gradient", ["exact", "implicit"])
def test_backward_of_newton_schulz_inside_autocast_stays_in_float32(gradient):
    w, grad = kernel_matrix(6, 4, 2).float().requires_grad_(), torch.randn(2, 6, 6)
    (expected,) = torch.autograd.grad(ops.newton_schulz(w, gradient=gradient), w, grad)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (inside,) = torch.autograd.grad(ops.newton_schulz(w, gradient=gradient), w, grad)
    assert torch.equal(inside, expected)


def test_autocast_gives_laplacian_matmul_its_own_dtype_and_accumulates_in_float32():
    x, y, values = torch.randn(2, 5, 3), torch.randn(2, 300, 3), torch.rand(2, 300, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = ops.laplacian_matmul(x, y, values, 4.0)
        double = ops.laplacian_matmul(x.double(), y.double(), values.double(), 4.0)
    assert out.dtype == torch.bfloat16
    assert double.dtype == torch.float64
    rounded = [t.bfloat16().double() for t in (x, y, values)]
    expected = ops.laplacian_matmul(*rounded, 4.0)
    assert ((out - expected).abs() <= 2**-8 * expected).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_meta_tensors_give_shape_and_dtype(name):
    x, y = torch.randn(2, 5, 3), torch.randn(2, 7, 3)
    out = FUNCTIONS[name](x.to("meta"), y.to("meta"))
    assert (out.shape, out.dtype, out.device.type) == (FUNCTIONS[name](x, y).shape, torch.float32, "meta")
