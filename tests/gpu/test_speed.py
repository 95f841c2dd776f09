"""Time on a GPU against torch.compile and scaled_dot_product_attention. Prints what it finds: `pytest -m gpu -s`."""

import pytest
import torch
from torch.nn import functional as F

from laplacianformer import ops

DEVICE = "cuda"
SCALE = 4.0
HEADS, LANDMARKS, WIDTH = 16, 49, 32


def milliseconds(function) -> float:
    """The median of 50 calls, by events on the GPU, after a warm-up."""
    for _ in range(10):
        function()
    times = []
    for _ in range(50):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def step(function, *inputs):
    leaves = [t.detach().requires_grad_() for t in inputs]
    grad = torch.ones_like(function(*leaves))
    return lambda: torch.autograd.grad(function(*leaves), leaves, grad)


def broadcast(x, y):
    return torch.exp((x[:, :, None] - y[:, None]).abs().sum(-1) / -SCALE)


@pytest.mark.parametrize("n", [3136, 12544])
def test_the_kernel_is_no_slower_than_torch_compile(n):
    torch._dynamo.reset()
    x, y = torch.randn(HEADS, n, WIDTH, device=DEVICE), torch.randn(HEADS, LANDMARKS, WIDTH, device=DEVICE)
    compiled = torch.compile(broadcast, dynamic=False)
    ours = lambda x, y: ops.laplacian_kernel(x, y, SCALE)
    with torch.no_grad():
        forward = [milliseconds(lambda f=f: f(x, y)) for f in (ours, compiled)]
    both = [milliseconds(step(f, x, y)) for f in (ours, compiled)]
    print(f"\nN = {n}: forward {forward[0]:.3f} ms, torch.compile {forward[1]:.3f} ms")
    print(f"N = {n}: forward + backward {both[0]:.3f} ms, torch.compile {both[1]:.3f} ms")
    assert forward[0] <= 1.1 * forward[1]
    assert both[0] <= 1.1 * both[1]


def test_two_products_are_faster_than_softmax_attention_on_many_tokens_and_linear_in_them():
    times = {}
    for n in (4096, 16384, 65536):
        q, k, v = (torch.randn(1, HEADS, n, WIDTH, device=DEVICE) for _ in range(3))
        landmarks = k[:, :, :LANDMARKS].contiguous()

        def ours(q=q, k=k, v=v, landmarks=landmarks):
            inner = ops.laplacian_matmul(landmarks, k, v, SCALE)
            return ops.laplacian_matmul(q, landmarks, inner, SCALE)

        with torch.no_grad():
            times[n] = milliseconds(ours), milliseconds(lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v))
        print(f"\nN = {n}: ours {times[n][0]:.3f} ms, scaled_dot_product_attention {times[n][1]:.3f} ms")
    assert times[16384][0] < times[16384][1]
    assert times[65536][0] <= 6 * times[16384][0]


@pytest.mark.parametrize("m", [49, 128])
def test_newton_schulz_is_faster_than_torch(m):
    x = torch.randn(64, m, 8, device=DEVICE)
    w = ops.laplacian_kernel(x, x, SCALE)
    with torch.no_grad():
        ours, theirs = (
            milliseconds(lambda b=b: ops.newton_schulz(w, 6, start="identity", backend=b))
            for b in ("triton", "reference")
        )
    print(f"\nm = {m}: ours {ours:.3f} ms, torch's batched products {theirs:.3f} ms")
    assert ours <= 1.1 * theirs
