"""The depth-wise convolution of volumes on a CPU, with a gradient of linear cost.

PyTorch's forward is fast there, but its gradient takes many times as long, and more than linear time. Here the gradient
of the volume is a convolution of its own, with the kernel reversed, and the gradient of the kernel is that of one
convolution of images for each of its layers.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn import grad

from laplacianformer.ops._tracing import is_autocast_possible, is_bare, is_unobserved, needs_gradient


def convolve_volume(convolution: Any, volume: Tensor) -> Tensor:
    """A depth-wise `nn.Conv3d` with padding, of a volume (B, C, T, H, W): the same numbers as a call of it."""
    tensors = volume, convolution.weight, convolution.bias
    plain = volume.is_cpu and is_unobserved(*tensors) and is_bare(convolution) and not is_autocast_possible()
    if plain and needs_gradient(*tensors):
        return _Convolution.apply(*tensors)
    return convolution(volume)


class _Convolution(torch.autograd.Function):
    """Kernels (C, 1, K, K, K) of odd K, padded to the size of the volume."""

    @staticmethod
    def forward(context: Any, volume: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
        context.save_for_backward(volume, kernel)
        return _same_size(volume, kernel, bias)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        volume, kernel = context.saved_tensors
        of_volume, of_kernel, of_bias = wanted = context.needs_input_grad
        if not is_unobserved(gradient):  # such as many gradients at once, which know operations of torch only
            sides = [kernel.shape[-1] // 2] * 3
            shared = ([1] * 3, sides, [1] * 3, False, [0] * 3, len(kernel))
            return torch.ops.aten.convolution_backward(gradient, volume, kernel, [len(kernel)], *shared, list(wanted))
        return (
            _same_size(gradient, kernel.flip(2, 3, 4)) if of_volume else None,
            _kernel_gradient(volume, kernel, gradient) if of_kernel else None,
            gradient.sum((0, 2, 3, 4)) if of_bias else None,
        )


def _same_size(volume: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.conv3d(volume, kernel, bias, padding=kernel.shape[-1] // 2, groups=len(kernel))


def _kernel_gradient(volume: Tensor, kernel: Tensor, gradient: Tensor) -> Tensor:
    """Layer i of the kernel sees the frames of the volume shifted by i - K // 2 frames."""
    frames, reach = volume.shape[2], kernel.shape[2] // 2
    found = []
    for shift, layer in zip(range(-reach, reach + 1), kernel.unbind(2), strict=True):
        first, end = max(0, -shift), min(frames, frames - shift)
        if first >= end:  # fewer frames than the kernel has layers
            found.append(torch.zeros_like(layer))
            continue
        seen, received = _frames(volume[:, :, first + shift : end + shift]), _frames(gradient[:, :, first:end])
        found.append(grad.conv2d_weight(seen, layer.shape, received, padding=reach, groups=len(kernel)))
    return torch.stack(found, dim=2)


def _frames(volume: Tensor) -> Tensor:
    """A batch of images (B * T, C, H, W), with channels where they are in memory: last."""
    return volume.movedim(1, -1).flatten(0, 1).movedim(-1, 1)
