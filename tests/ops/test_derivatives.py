"""Second derivatives and forward-mode derivatives of the ops, against finite differences in float64, and those that
torch.func combines from them. The L1 norm has them almost everywhere."""

import pytest
import torch
from torch import Tensor, func
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from laplacianformer import LaplacianAttention, ops
from laplacianformer.ops import _registered as registered
from tests.ops.helpers import kernel_matrix, leaves

SCALE = 2.0
# torch maps ops of torch.library over a batch one by one, and warns about it; its forward mode uses what it deprecates.
pytestmark = pytest.mark.filterwarnings(
    "ignore:There is a performance drop", "ignore:`torch.jit.script` is deprecated:FutureWarning"
)


def rotation(rows: int, width: int) -> tuple[Tensor, Tensor]:
    angles = torch.linspace(0, 3, rows * width // 2, dtype=torch.float64).view(rows, width // 2)
    return angles.cos(), angles.sin()


def functions(backend: str) -> dict:
    """Each op, as a function of the tensors that are differentiated, and such tensors."""
    points = [(2, 5, 4), (2, 3, 4)]
    cells, grid = rotation(4, 4), rotation(12, 4)

    def attention(q, k, v):
        settings = {"rotation": grid, "cell_rotation": cells, "iterations": 2, "eps": 0.1, "backend": backend}
        return ops.laplacian_attention(q, k, v, (3, 4), (2, 2), SCALE, **settings)[0]

    return {
        "laplacian_kernel": (lambda x, y: ops.laplacian_kernel(x, y, SCALE, backend=backend), points),
        "laplacian_kernel, rotated": (
            lambda x, y: ops.laplacian_kernel(
                x, y, SCALE, x_rotation=rotation(5, 4), y_rotation=rotation(3, 4), backend=backend
            ),
            points,
        ),
        "laplacian_kernel, y is longer": (
            lambda x, y: ops.laplacian_kernel(y, x, SCALE, y_rotation=rotation(5, 4), backend=backend),
            points,
        ),
        "laplacian_matmul": (
            lambda x, y, v: ops.laplacian_matmul(x, y, v, SCALE, backend=backend),
            [*points, (2, 3, 2)],
        ),
        "laplacian_matmul, rotated": (
            lambda x, y, v: ops.laplacian_matmul(y, x, v, SCALE, y_rotation=rotation(5, 4), backend=backend),
            [*points, (2, 5, 2)],
        ),
        "newton_schulz, transpose": (lambda w: ops.newton_schulz(w, 2, 0.1, backend=backend), None),
        "newton_schulz, identity": (lambda w: ops.newton_schulz(w, 3, 0.1, start="identity", backend=backend), None),
        "newton_schulz, implicit": (
            lambda w: ops.newton_schulz(w, 30, 0.1, gradient="implicit", backend=backend),
            None,
        ),
        "inverse_sqrt": (lambda w: ops.inverse_sqrt((w + w.mT) / 2, 0.1), None),
        "conjugate_gradient": (lambda w: ops.conjugate_gradient((w + w.mT) / 2, w[..., :2], 6, 0.1), None),
        "ridge_solve": (lambda w: ops.ridge_solve(w, w[..., :2], 0.1), None),
        "cholesky_solve": (lambda w: ops.cholesky_solve((w + w.mT) / 2, w[..., :2], 0.1), None),
        "gaussian_kernel": (lambda x, y: ops.gaussian_kernel(x, y, SCALE), points),
        "matern_kernel": (lambda x, y: ops.matern_kernel(x, y, SCALE), points),
        "cosine_kernel": (lambda x, y: ops.cosine_kernel(x, y, SCALE), points),
        "polynomial_kernel": (lambda x, y: ops.polynomial_kernel(x, y, SCALE), points),
        "gelu": (lambda x: ops.gelu(x, backend=backend), [(2, 5)]),
        "linear": (lambda *tensors: ops.linear(*tensors, backend=backend), [(5, 3), (4, 3), (4,)]),
        "mlp": (lambda *tensors: ops.mlp(*tensors, backend=backend), [(5, 3), (4, 3), (4,), (2, 4), (2,)]),
        "column_variance": (lambda x: ops.column_variance(x, backend=backend), [(2, 2, 5, 3)]),
        "rotate": (lambda x: ops.rotate(x, *rotation(5, 4), backend=backend), [(2, 5, 4)]),
        "laplacian_attention": (attention, [(2, 1, 12, 4)] * 3),
    }


NAMES = list(functions("reference"))
each_op = pytest.mark.parametrize("name", NAMES)


def fast(name: str) -> bool:
    """Whether one direction is compared and not every number: in what is composed of ops that are compared in full."""
    return name == "laplacian_attention" or "rotated" in name or "longer" in name


def case(name: str, backend: str) -> tuple:
    function, shapes = functions(backend)[name]
    inputs = leaves(*shapes) if shapes else [(kernel_matrix(3, 4, 2) + 0.01 * torch.randn(2, 3, 3)).requires_grad_()]
    return function, inputs


def test_every_op_is_here():
    others = {"backends", "use_backend", "newton_schulz_residuals"}  # the last is for diagnosis: it has no derivatives
    assert {name.partition(",")[0] for name in NAMES} == {*ops.__all__} - others


@pytest.fixture(params=["unobserved", "through torch.library"])
def path(request, monkeypatch) -> None:
    if request.param == "through torch.library":
        monkeypatch.setattr(registered, "is_unobserved", lambda *arguments: False)


@each_op
def test_second_derivatives_match_finite_differences(name, backend, path):
    function, inputs = case(name, backend)
    assert gradgradcheck(function, inputs, fast_mode=fast(name))


@each_op
def test_forward_derivatives_match_finite_differences(name, backend):
    function, inputs = case(name, backend)
    assert gradcheck(
        function,
        inputs,
        check_forward_ad=True,
        check_backward_ad=False,
        check_batched_forward_grad=True,
        fast_mode=fast(name),
    )


@each_op
def test_forward_derivatives_of_gradients_match_finite_differences(name, backend):
    function, inputs = case(name, backend)
    assert gradgradcheck(
        function,
        inputs,
        check_fwd_over_rev=True,
        check_rev_over_rev=False,
        check_undefined_grad=False,
        fast_mode=fast(name),
    )


@each_op
def test_third_derivatives_match_finite_differences(name):
    function, inputs = case(name, "reference")

    def gradient(*tensors):
        return torch.autograd.grad(function(*tensors).sin().sum(), tensors, create_graph=True)

    assert gradgradcheck(gradient, inputs, rtol=1e-2, fast_mode=True)


@each_op
def test_a_gradient_that_carries_a_forward_derivative(name, backend):
    """The forward call was before: only what arrives in backward changes."""
    function, inputs = case(name, backend)
    out = function(*inputs)
    grad, change = torch.randn_like(out), torch.randn_like(out)
    expected = torch.autograd.grad(out, inputs, change, retain_graph=True)
    with forward_ad.dual_level():
        found = torch.autograd.grad(out, inputs, forward_ad.make_dual(grad, change))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(forward_ad.unpack_dual(one).tangent, other)


@each_op
def test_every_order_of_transforms_gives_the_same_hessian(name, backend):
    function, inputs = case(name, backend)
    inputs = [tensor.detach() for tensor in inputs]

    def loss(first):
        return function(first, *inputs[1:]).sin().sum()

    hessian = func.hessian(loss)(inputs[0])
    exact = torch.autograd.functional.hessian(loss, inputs[0])
    torch.testing.assert_close(hessian, exact)
    torch.testing.assert_close(func.jacrev(func.jacrev(loss))(inputs[0]), exact)
    torch.testing.assert_close(func.jacrev(func.jacfwd(loss))(inputs[0]), exact)


@pytest.mark.parametrize("training", [False, True])
def test_hessian_vector_products_of_a_layer(training):
    torch.manual_seed(0)
    layer = LaplacianAttention(8, 2, grid=2).double().train(training)
    parameters = {name: value.detach() for name, value in layer.named_parameters()}
    tokens = torch.randn(2, 12, 8, dtype=torch.float64)

    def loss(parameters):
        buffers = {name: value.clone() for name, value in layer.named_buffers()}
        return func.functional_call(layer, {**parameters, **buffers}, (tokens, (3, 4))).sin().sum()

    direction = {name: torch.randn_like(value) for name, value in parameters.items()}
    gradient, product = func.jvp(func.grad(loss), (parameters,), (direction,))
    _, pull_back = func.vjp(func.grad(loss), parameters)
    (backward_product,) = pull_back(direction)
    step = 1e-6
    ahead, behind = (
        func.grad(loss)({name: value + sign * step * direction[name] for name, value in parameters.items()})
        for sign in (1, -1)
    )
    for name in parameters:
        torch.testing.assert_close(backward_product[name], product[name])
        difference = (ahead[name] - behind[name]) / (2 * step)
        torch.testing.assert_close(product[name], difference, rtol=1e-5, atol=1e-6)
    own = torch.autograd.grad(
        func.functional_call(layer, {n: v.requires_grad_() for n, v in parameters.items()}, (tokens, (3, 4)))
        .sin()
        .sum(),
        list(parameters.values()),
    )
    for name, value in zip(parameters, own, strict=True):
        torch.testing.assert_close(gradient[name], value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_dtypes(dtype, backend):
    """Derivatives have the dtype of what they are of, and are those of float64 up to rounding."""
    x, y, v = (t.detach().to(dtype) for t in leaves((5, 4), (3, 4), (3, 2)))

    def products(x, y, v):
        loss = lambda x: ops.laplacian_matmul(x, y, v, SCALE, backend=backend).sin().sum(dtype=torch.float64)
        return func.vjp(func.grad(loss), x)[1](torch.ones_like(x))[0], func.jvp(loss, (x,), (torch.ones_like(x),))[1]

    for found, expected in zip(products(x, y, v), products(x.double(), y.double(), v.double()), strict=True):
        assert found.dtype in (dtype, torch.float64)
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=0.05 if dtype == torch.bfloat16 else 1e-4)


@pytest.mark.parametrize(
    "function",
    [
        lambda w: ops.conjugate_gradient(w, w[..., :2], 2, 0.1),
        lambda w: ops.inverse_sqrt(w, 0.1),
        lambda w: ops.newton_schulz(w, 2, gradient="implicit"),
    ],
    ids=["conjugate_gradient", "inverse_sqrt", "newton_schulz"],
)
def test_values_beside_derivatives_are_those_of_the_steps(function):
    """Also after few steps, far from the solution."""
    w = kernel_matrix(5, 4, 2)
    value, _ = func.jvp(function, (w,), (w,))
    torch.testing.assert_close(value, function(w))


def test_compiled_forward_derivatives_are_not_dropped():
    x, y, change = (t.detach() for t in leaves((5, 4), (3, 4), (5, 4)))

    def derivative(x, change):
        return func.jvp(lambda x: ops.laplacian_kernel(x, y, SCALE), (x,), (change,))[1]

    expected = derivative(x, change)
    assert expected.abs().max() > 0.01
    torch.testing.assert_close(torch.compile(derivative, backend="aot_eager", fullgraph=True)(x, change), expected)
