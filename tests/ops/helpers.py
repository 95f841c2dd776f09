"""Oracles written from the definitions, in float64, and helpers that several test files use."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from laplacianformer import ops

# Every backend that can run on CPUs of this machine. For `triton`, see test_triton.py and tests/gpu.
BACKENDS = [name for name, missing in ops.backends().items() if missing is None and name != "triton"]
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# Allowed error over the magnitude of the result (see `assert_close`). Inputs are rounded before the oracle sees
# them. Half precision rounds once, at the end (2^-11 and 2^-8), and once more the kernel that a gradient reads.
# float32 and float64 accumulate up to some hundred terms: 16 units in the last place.
BUDGET = {torch.float16: 2**-10, torch.bfloat16: 2**-7, torch.float32: 2**-20, torch.float64: 2**-48}


def laplacian(x: Tensor, y: Tensor, scale: float) -> Tensor:
    return (-(x[..., :, None, :] - y[..., None, :, :]).abs().sum(-1) / scale).exp()


def gaussian(x: Tensor, y: Tensor, scale: float) -> Tensor:
    return (-(x[..., :, None, :] - y[..., None, :, :]).square().sum(-1) / (2 * scale**2)).exp()


def regularised(w: Tensor, eps: float) -> Tensor:
    return w + eps * torch.eye(w.shape[-1], dtype=w.dtype)


def kernel_matrix(m: int, d: int = 4, *batch: int, scale: float = 4.0) -> Tensor:
    """The Laplacian kernel of random points: symmetric positive definite, ones on its diagonal, float64."""
    x = torch.randn(*batch, m, d, dtype=torch.float64)
    return laplacian(x, x, scale)


def leaves(*shapes: Sequence[int], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [torch.randn(*shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def in_float64(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Leaves in float64 with the same values."""
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def gradients(function: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    out = function(*inputs)
    return torch.autograd.grad(out, inputs, grad.to(out.dtype))


def assert_close(actual: Tensor, expected: Tensor, magnitude: float | None = None, budget: float | None = None) -> None:
    """Within the budget of actual's dtype, relative to `magnitude` (default: the largest expected value)."""
    assert actual.shape == expected.shape
    if actual.numel() == 0:
        return
    if magnitude is None:
        magnitude = expected.abs().max().item()
    error = (actual.double() - expected).abs().max().item()
    allowed = (BUDGET[actual.dtype] if budget is None else budget) * magnitude
    assert error <= allowed, f"error {error:.3g}, allowed {allowed:.3g}"


def assert_matches(
    function: Callable[..., Tensor], oracle: Callable[..., Tensor], inputs: Sequence[Tensor], terms: int = 1
) -> None:
    """Values and gradients of a function of `inputs`, all of one dtype, against those of the oracle in float64.

    `terms`: how many numbers of random sign are added: they cancel to sqrt(terms) of what they add up to in
    magnitude, and their rounding errors need not.
    """
    exact = in_float64(inputs)
    out, expected = function(*inputs), oracle(*exact)
    assert out.dtype == inputs[0].dtype
    grad = torch.randn(expected.shape, dtype=torch.float64).to(out.dtype)
    ours = out, *torch.autograd.grad(out, inputs, grad)
    theirs = expected, *torch.autograd.grad(expected, exact, grad.double())
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a.detach(), b.detach(), terms**0.5 * b.detach().abs().amax().item() if b.numel() else None)


def layouts(tensor: Tensor) -> dict[str, Tensor]:
    """The same values in memory layouts other than the contiguous one."""
    spread = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1]), torch.nan, dtype=tensor.dtype)
    spread[..., ::2] = tensor
    return {
        "transposed": tensor.mT.contiguous().mT,
        "strided": spread[..., ::2],
        "permuted": tensor.movedim(0, -1).contiguous().movedim(-1, 0),
    }


def peak_bytes(function: Callable[[], object]) -> int:
    """Peak memory of torch's CPU allocator above what was allocated before the call."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        function()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak
