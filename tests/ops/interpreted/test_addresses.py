"""Addresses beyond 2^31 elements in every kernel, in the interpreter, in memory that is reserved and hardly touched.

Strides reach them where a kernel takes strides. Where it counts rows or matrices itself, there are so many of them
that the last program is beyond, and only that one runs.
"""

import math
import mmap

import pytest
import torch

from laplacianformer import ops
from laplacianformer.ops import _triton_support as support
from laplacianformer.ops.laplacian_kernel import triton as kernels
from laplacianformer.ops.laplacian_matmul import triton as products
from laplacianformer.ops.newton_schulz import triton as inverses
from tests.ops.helpers import kernel_matrix

# Rows of a panel beyond the last hold anything; numpy, which the interpreter computes with, warns about it.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

SCALE = 3.0
FAR = 2**31 + 64
MAP_NORESERVE = 0x4000  # Linux; Python has the name from 3.13 on


def reserved(*shape):
    """Zeros that take no memory until they are written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    return torch.frombuffer(mmap.mmap(-1, 4 * math.prod(shape), flags=flags), dtype=torch.float32).view(shape)


def far(tensor, *strides):
    """The same numbers, with other strides; by default, each matrix of the batch far from the one before."""
    strides = strides or (FAR, *tensor.stride()[1:])
    span = sum((length - 1) * stride for length, stride in zip(tensor.shape, strides, strict=True)) + 1
    return reserved(span).as_strided(tensor.shape, strides).copy_(tensor)


def last_of(batch, tensor):
    """The last matrix of a batch of `batch`, others not written."""
    out = reserved(batch, *tensor.shape[1:])
    out[-1] = tensor[-1]
    return out


def kernel(x, y):
    return ops.laplacian_kernel(x, y, SCALE, backend="triton")


@pytest.mark.parametrize("strides", [(FAR, 4, 1), (4, FAR, 1)], ids=["matrices", "rows"])
def test_inputs_and_results_of_the_kernel(strides):
    x, y = torch.randn(2, 2, 4), torch.randn(2, 3, 4)
    assert torch.equal(kernel(far(x, *strides), y), kernel(x, y))
    assert torch.equal(kernel(y, far(x, *strides)), kernel(y, x))

    panels, expected = (support.panels(t) for t in (x, y)), kernel(x, y)
    out = far(torch.zeros(2, 2, 3), *strides)
    kernels.kernel_matrix(*panels, out, SCALE)
    assert torch.equal(out, expected)

    weights = [kernels.weights_like(x, y) for _ in range(2)]
    kernels.multiply(torch.ones(2, 2, 3), expected, *weights[0])
    kernels.multiply(far(torch.ones(2, 2, 3), *strides), out, *weights[1])
    assert all(torch.equal(a[..., :2], b[..., :2]) for a, b in zip(*weights, strict=True))


def test_panels_of_the_kernel():
    panels = [support.panels(torch.randn(2, n, 4)) for n in (2, 3)]
    outs = torch.zeros(2, 2, 2, 3)
    for out, pair in zip(outs, (panels, [far(p) for p in panels]), strict=True):
        kernels.kernel_matrix(*pair, out, SCALE)
    assert torch.equal(*outs)


def test_weights_of_the_kernel():
    grad, out = torch.randn(2, 2, 3), torch.rand(2, 2, 3)
    near = kernels.weights_like(torch.empty(2, 2, 4), torch.empty(2, 3, 4))
    distant = [far(t.fill_(0)) for t in near]
    for weights in (near, distant):
        kernels.multiply(grad, out, *weights)
    assert near[0].any()
    assert all(torch.equal(a, b) for a, b in zip(near, distant, strict=True))


def sign_inputs(batch, n, m, width):
    weights, _ = kernels.weights_like(torch.empty(batch, n, 1), torch.empty(batch, m, 1))
    return weights.normal_(), support.rows(torch.randn(batch, n, width)), support.rows(torch.randn(batch, m, width))


def test_inputs_of_the_signs():
    inputs = sign_inputs(2, 2, 3, 4)
    expected = kernels._sign_products(*inputs, 2, 3)
    assert torch.equal(kernels._sign_products(*(far(t) for t in inputs), 2, 3)[..., :4], expected[..., :4])


@pytest.mark.usefixtures("last_program_only")
def test_results_of_the_signs_in_a_large_batch():
    weights, own, other = sign_inputs(1, 2, 3, 16)
    expected = kernels._sign_products(weights, own, other, 2, 3)
    batch = 2**31 // own.numel() + 2
    many = kernels._sign_products(*(t.expand(batch, *t.shape[1:]) for t in (weights, own, other)), 2, 3)
    assert torch.equal(many[-1], expected[0])


@pytest.mark.usefixtures("last_program_only")
@pytest.mark.parametrize(("n", "width"), [(2**23 + 128, 256), (2**25 + 128, 16)], ids=["rows", "weights"])
def test_signs_of_many_rows(n, width):
    weights, own, other = sign_inputs(1, 128, 3, width)
    expected = kernels._sign_products(weights, own, other, 128, 3)
    many_weights, many_own = reserved(1, n // 128, *weights.shape[2:]), reserved(1, n, width)
    many_weights[:, -1], many_own[:, -128:] = weights[:, -1], own
    out = kernels._sign_products(many_weights, many_own, other, n, 3)
    assert max(many_weights.numel(), many_own.numel()) > 2**31
    assert torch.equal(out[:, -128:, -16:], expected[..., -16:])


def test_panels_of_the_product():
    panels, values = [support.panels(torch.randn(2, n, 4)) for n in (2, 3)], torch.randn(2, 3, 5)
    expected = products._product(*panels, values, 2, SCALE)
    assert torch.equal(products._product(*(far(p) for p in panels), values, 2, SCALE), expected)


@pytest.mark.usefixtures("last_program_only")
def test_values_and_results_of_the_product_in_a_large_batch():
    x, y, values = support.panels(torch.randn(1, 8, 4)), support.panels(torch.randn(1, 8, 4)), torch.randn(1, 8, 256)
    expected = products._product(x, y, values, 8, SCALE)
    batch = 2**31 // values.numel() + 2
    panels = (t.expand(batch, *t.shape[1:]) for t in (x, y))
    out = products._product(*panels, last_of(batch, values), 8, SCALE)
    assert torch.equal(out[-1, :, -32:], expected[0, :, -32:])


@pytest.mark.usefixtures("last_program_only")
def test_many_rows_of_the_product():
    x, y, values = support.panels(torch.randn(1, 128, 4)), support.panels(torch.randn(1, 3, 4)), torch.randn(1, 3, 256)
    n = 2**23 + 128
    many = reserved(1, n // 128, 4, 128)
    many[:, -1] = x[:, -1]
    out = products._product(many, y, values, n, SCALE)
    assert out.numel() > 2**31
    assert torch.equal(out[:, -128:, -32:], products._product(x, y, values, 128, SCALE)[..., -32:])


@pytest.mark.usefixtures("last_program_only")
def test_many_values_of_the_product():
    """The last of many parts of the sum."""
    x, y, values = support.panels(torch.randn(1, 2, 4)), support.panels(torch.randn(1, 64, 4)), torch.randn(1, 64, 32)
    m = 2**26 + 64
    many, many_values, out = reserved(1, m // 128 + 1, 4, 128), reserved(1, m, 32), reserved(m // 64, 1, 2, 32)
    many[:, -1], many_values[:, -64:] = y[:, -1], values
    options = products.threads(64, torch.float32) | {"BLOCK_N": 64, "BLOCK_M": 64, "BLOCK_V": 32}
    products._forward[(len(out),)](x, many, many_values, out, 0, 0, 2, m, 4, 32, len(out), -1 / SCALE, **options)
    assert torch.equal(out[-1], products._product(x, y, values, 2, SCALE))


def test_weights_of_the_product():
    x, y, grad, values = torch.randn(2, 2, 4), torch.randn(2, 3, 4), torch.randn(2, 2, 5), torch.randn(2, 3, 5)
    near = kernels.weights_like(x, y)
    distant = [far(t.fill_(0)) for t in near]
    products._weigh(x, y, grad, values, *near, SCALE)
    products._weigh(x, y, far(grad), far(values), *distant, SCALE)
    assert near[0].any()
    assert all(torch.equal(a, b) for a, b in zip(near, distant, strict=True))


def test_panels_of_the_weights_of_the_product(monkeypatch):
    x, y, grad, values = torch.randn(2, 2, 4), torch.randn(2, 3, 4), torch.randn(2, 2, 5), torch.randn(2, 3, 5)
    near, distant = ([t.fill_(0) for t in kernels.weights_like(x, y)] for _ in range(2))
    products._weigh(x, y, grad, values, *near, SCALE)
    panels = support.panels
    monkeypatch.setattr(support, "panels", lambda t: far(panels(t)))
    products._weigh(x, y, grad, values, *distant, SCALE)
    assert all(torch.equal(a, b) for a, b in zip(near, distant, strict=True))


@pytest.mark.usefixtures("last_program_only")
@pytest.mark.parametrize("size", [16, 128], ids=["on chip", "through the cache"])
def test_newton_schulz_in_a_large_batch(size):
    a, first, grad = kernel_matrix(size, 4, 1).float(), torch.eye(size)[None] / size, torch.randn(1, size, size)
    iterates = inverses._iterates(a, first, 1, keep=2)
    grads = inverses._gradients(a, iterates[:, :1].contiguous(), grad.clone())

    batch, options = 2**31 // size**2 + 2, inverses.configuration(size)
    room = lambda count: reserved(batch, count, size, size)
    many_a, many_iterates = last_of(batch, a), room(2)
    many_iterates[-1, 0] = first[0]
    many_grads = last_of(batch, grad), last_of(batch, torch.zeros_like(grad))
    if size <= inverses.ON_CHIP:
        inverses._steps_on_chip[(batch,)](many_a, many_iterates, 1, 2, **options)
        inverses._adjoint_on_chip[(batch,)](many_a, last_of(batch, first), *many_grads, 1, **options)
    else:
        inverses._steps[(batch,)](many_a, many_iterates, room(1), 1, 2, **options)
        inverses._adjoint[(batch,)](many_a, last_of(batch, first), *many_grads, room(3), 1, **options)
    assert torch.equal(many_iterates[-1, 1], iterates[0, 1])
    for ours, theirs in zip(many_grads, grads, strict=True):
        assert torch.equal(ours[-1], theirs[0])
