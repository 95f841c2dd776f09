"""The ops on a GPU, by the automatic choice: numbers against float64, the same bits, no waiting, graphs, memory."""

import pytest
import torch
from torch import Tensor

from laplacianformer import ops
from laplacianformer._util.measuring import peak_memory
from tests.ops.helpers import BUDGET, laplacian

DEVICE = "cuda"
SCALE = 4.0
HALF_AND_SINGLE = (torch.float16, torch.bfloat16, torch.float32)


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32, spread: float = 0.3) -> list[Tensor]:
    return [(spread * torch.randn(shape)).to(DEVICE, dtype).requires_grad_() for shape in shapes]


def kernel(x: Tensor, y: Tensor) -> Tensor:
    return ops.laplacian_kernel(x, y, SCALE)


def product(x: Tensor, y: Tensor, values: Tensor) -> Tensor:
    return ops.laplacian_matmul(x, y, values, SCALE)


def inverse(w: Tensor) -> Tensor:
    return ops.newton_schulz(ops.laplacian_kernel(w, w.detach(), SCALE), 6, start="identity")


# Name: the op, its oracle, the shapes of its inputs.
OPS = {
    "kernel": (kernel, lambda x, y: laplacian(x, y, SCALE), [(3, 300, 32), (3, 49, 32)]),
    "kernel, wide": (kernel, lambda x, y: laplacian(x, y, SCALE), [(2, 131, 256), (2, 67, 256)]),
    "product": (product, lambda x, y, v: laplacian(x, y, SCALE) @ v, [(3, 300, 32), (3, 49, 32), (3, 49, 32)]),
    "reduction": (product, lambda x, y, v: laplacian(x, y, SCALE) @ v, [(3, 49, 32), (3, 3136, 32), (3, 3136, 33)]),
    "odd": (product, lambda x, y, v: laplacian(x, y, SCALE) @ v, [(1, 1, 1), (1, 7, 1), (1, 7, 3)]),
}
# The same without an oracle: on the chip, and through the cache.
INVERSES = {f"inverse, {m} rows": (inverse, None, [(64, m, 8)]) for m in (49, 64, 100)}
each_op = pytest.mark.parametrize("name", OPS)
each_op_and_inverse = pytest.mark.parametrize("name", [*OPS, *INVERSES])


def results(function, inputs: list[Tensor], grad: Tensor | None = None) -> list[Tensor]:
    out = function(*inputs)
    grad = torch.ones_like(out) if grad is None else grad.to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, inputs, grad)]


@each_op
@pytest.mark.parametrize("dtype", [*HALF_AND_SINGLE, torch.float64], ids=str)
def test_values_and_gradients_match_float64(name, dtype):
    function, oracle, shapes = OPS[name]
    inputs = tensors(*shapes, dtype=dtype, spread=min(0.3, 10 / shapes[0][-1]))
    exact = [t.detach().double().requires_grad_() for t in inputs]
    grad = torch.randn(oracle(*exact).shape, device=DEVICE).to(dtype)
    terms = max(shape[1] for shape in shapes)
    for a, b in zip(results(function, inputs, grad), results(oracle, exact, grad), strict=True):
        assert (a.double() - b).abs().max() <= BUDGET[dtype] * terms**0.5 * b.abs().max()


@pytest.mark.parametrize("m", [1, 17, 49, 64, 65, 128, 196])
@pytest.mark.parametrize("start", ["identity", "transpose"])
def test_newton_schulz_matches_the_steps_in_float64(m, start):
    (x,) = tensors((4, m, 8), spread=1.0)
    w = laplacian(x.detach().double(), x.detach().double(), SCALE)
    single, exact = w.float().requires_grad_(), w.requires_grad_()
    grad = torch.randn(4, m, m, device=DEVICE)
    ours, theirs = (
        results(lambda w, b=b: ops.newton_schulz(w, 6, start=start, backend=b), [t], grad)
        for t, b in ((single, None), (exact, "reference"))
    )
    for a, b in zip(ours, theirs, strict=True):
        assert (a.double() - b).abs().max() <= 4e-6 * b.abs().max()


def test_the_triton_backend_is_the_automatic_choice():
    assert ops.backends()["triton"] is None
    inputs = tensors((2, 70, 5), (2, 66, 5), (2, 66, 3))
    assert torch.equal(product(*inputs), ops.laplacian_matmul(*inputs, SCALE, backend="triton"))
    (x,) = tensors((2, 3, 70, 5))
    assert torch.equal(ops.column_variance(x), ops.column_variance(x, backend="triton"))


@each_op_and_inverse
def test_same_inputs_give_the_same_bits(name):
    function, _, shapes = (OPS | INVERSES)[name]
    inputs = tensors(*shapes)
    first = results(function, inputs)
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(first, results(function, inputs), strict=True))


@each_op_and_inverse
def test_never_waits_for_the_gpu(name):
    function, _, shapes = (OPS | INVERSES)[name]
    inputs = tensors(*shapes)
    results(function, inputs)  # compiles and tunes
    torch.cuda.set_sync_debug_mode("error")
    try:
        results(function, inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@each_op_and_inverse
def test_runs_in_a_cuda_graph(name):
    function, _, shapes = (OPS | INVERSES)[name]
    inputs = tensors(*shapes)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        results(function, inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = results(function, inputs)
    with torch.no_grad():
        for t in inputs:
            t.copy_(0.3 * torch.randn_like(t))
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, results(function, inputs), strict=True))


def test_memory_of_the_product_grows_with_n_and_not_with_n_squared():
    def peak(n: int) -> float:
        inputs = tensors((1, n, 32), (1, n, 32), (1, n, 32))
        return peak_memory(lambda: results(product, inputs), "cuda")

    peak(1024)
    tokens = [2**14, 2**16, 2**18]
    peaks = [peak(n) for n in tokens]
    print("\n" + ", ".join(f"N = {n}: {used:.0f} MB" for n, used in zip(tokens, peaks, strict=True)))
    # Four times the tokens, and the bounded weights of the gradient, which don't grow.
    assert peaks[1] <= 4.4 * peaks[0]
    assert peaks[2] <= 4.4 * peaks[1]
    assert peaks[2] < 2**10  # megabytes; the kernel matrix would take 256 GB


def test_addresses_beyond_31_bits():
    n, m = 2**16 + 1, 2**15 + 1  # more than 2^31 numbers in the result, 4 GB in half precision
    if torch.cuda.mem_get_info()[0] < 12 * 2**30:
        pytest.skip("needs 12 GB of free GPU memory")
    x, y = tensors((n, 2), (m, 2), dtype=torch.float16)
    with torch.no_grad():
        out = kernel(x, y)
        assert torch.equal(out[-3:], kernel(x[-3:], y))
