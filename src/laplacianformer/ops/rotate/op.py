"""rotate: the public function and its registration with torch.library."""

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from laplacianformer.ops import _check as check
from laplacianformer.ops._backend import Backends, Checked, requested
from laplacianformer.ops._precision import accumulation_dtype, without_autocast
from laplacianformer.ops._registered import registered
from laplacianformer.ops._tracing import is_compiled
from laplacianformer.ops.rotate import cpu, reference


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, backend: str | None = None) -> Tensor:
    """Turn channel k of each row, together with channel k + d/2, by the angle whose cosine and sine are given.

    Args:
        x: (..., N, d), d even.
        cos, sin: (N, d/2), constants. They are used in float32 (float64 for float64 x).
        backend: force one (see `backends()`); by default the fastest that can run.

    Returns:
        (..., N, d), contiguous, in the dtype of x. O(N d).
    """
    cos, sin = constants("rotate", x, cos, sin)
    name = requested(backend)
    if is_compiled() and name in ("", "reference"):
        return reference.forward(x, cos, sin)  # compilers fuse it with its neighbours, exporters know its parts
    return _rotate(x, cos, sin, name)


def constants(name: str, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The cosines and sines of a rotation of x, checked, in the dtype that accumulates."""
    check.tensors(name, x=x, cos=cos, sin=sin)
    expected = (x.shape[-2], x.shape[-1] // 2)
    if x.shape[-1] % 2 or tuple(cos.shape) != expected or tuple(sin.shape) != expected:
        raise ValueError(
            f"{name}: for x of shape (..., N, d), d even, cos and sin must be (N, d/2), "
            f"got {tuple(x.shape)}, {tuple(cos.shape)} and {tuple(sin.shape)}"
        )
    dtype = accumulation_dtype(x.dtype)
    return cos.detach().to(dtype), sin.detach().to(dtype)


class _Rotation(Checked, Protocol):
    @property
    def forward(self) -> Callable[..., Tensor]: ...


def _triton() -> _Rotation:
    from laplacianformer.ops.rotate import triton

    return triton


BACKENDS: Backends[_Rotation] = Backends("rotate", cpu=cpu, triton=_triton, reference=reference)


@registered("laplacianformer::rotate", lambda x, cos, sin, backend: reference.forward(x, cos, sin))
def _rotate(x: Tensor, cos: Tensor, sin: Tensor, backend: str) -> Tensor:
    with without_autocast(x.device):
        return BACKENDS.choose(backend, x, cos, sin).forward(x, cos, sin)


@_rotate.register_fake
def _(x: Tensor, cos: Tensor, sin: Tensor, backend: str) -> Tensor:
    return x.new_empty(x.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, cos, sin, ctx.backend = inputs
    ctx.save_for_backward(cos, sin)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    cos, sin = ctx.saved_tensors
    return _rotate(grad, cos, -sin, ctx.backend), None, None, None


_rotate.register_autograd(_differentiate, setup_context=_save)
