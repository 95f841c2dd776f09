"""The start of a converted layer: softmax does not say where keys are, nor at what scale; the kernel needs both.

Softmax rows don't change when all keys are shifted. Distances do. So, per head: keys stay where they are, or are
shifted to the mean of the queries; queries and keys are multiplied by what makes their mean distance a few times the
kernel's scale; and the gain is the least-squares one. The choice with the least error of the output is kept, folded
into the projections.

Shape suffixes: b batch, h heads, n tokens, d head width.
"""

import copy
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from laplacianformer.attention import GridAttention, LaplacianAttention
from laplacianformer.ops._pooling import Size

# Mean distance of queries and keys, over the scale: l1 for the Laplacian kernel, l2 for those to compare it with, which
# get as many tries.
_RATIOS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
_OTHER_RATIOS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
_FEW = 256  # queries and keys whose distances are averaged
_LEAST = 1e-12


class _Fit(NamedTuple):
    shift_hd: Tensor  # of the keys
    factor_h: Tensor  # of queries and keys, then
    gain_h: Tensor
    error_h: Tensor


@torch.no_grad()
def calibrate(layer: LaplacianAttention, x_bnc: Tensor, size: Size, heads_bnc: Tensor) -> Tensor:
    """Set the projections of queries and keys, and the gain, so that `layer(x, size)` is near what softmax gave.

    heads_bnc: what the softmax layer gave its output projection for x. Returns the relative squared error per head.
    """
    width = (layer.num_heads, layer.head_dim)
    q, k, v = layer.project(x_bnc, size)
    target = heads_bnc.unflatten(-1, width).transpose(1, 2)
    target = target - layer.local(v, size).unflatten(-1, width).transpose(1, 2)
    shifts = [torch.zeros_like(q[0, :, 0])]
    if layer.qkv.bias is not None and not layer.rope:  # rotations by position would turn a shift
        shifts.append(q.mean((0, 2)) - k.mean((0, 2)))
    norm, ratios = (1.0, _RATIOS) if layer.kernel_name == "laplacian" else (2.0, _OTHER_RATIOS)
    fits = []
    for shift_hd in shifts:
        moved = k + shift_hd[:, None]
        distance_h = torch.cdist(q[:, :, :_FEW], moved[:, :, :_FEW], p=norm).mean((0, 2, 3)).clamp(min=_LEAST)
        fits += [_fit(layer, (q, moved, v), size, target, shift_hd, r * layer.scale / distance_h) for r in ratios]
    best = torch.stack([fit.error_h for fit in fits]).argmin(0)
    of_heads = list(enumerate(best.tolist()))
    chosen = _Fit(*(torch.stack([part[i][h] for h, i in of_heads]) for part in zip(*fits, strict=True)))
    _fold(layer, chosen)
    mode = layer.training
    layer.train()(x_bnc, size)  # the first batch of the running statistics
    layer.train(mode)
    return chosen.error_h


def _fit(
    layer: LaplacianAttention,
    qkv: tuple[Tensor, Tensor, Tensor],
    size: Size,
    target: Tensor,
    shift_hd: Tensor,
    factor_h: Tensor,
) -> _Fit:
    """The least-squares gain for queries and keys that are multiplied by a factor, and what error is left."""
    (q, k, v), factor = qkv, factor_h[:, None, None]
    plain, whole = (_with_gain(layer, gain).mix(q * factor, k * factor, v, size) for gain in (0.0, 1.0))
    rest, part = target - plain, whole - plain
    gain_h = (rest * part).sum((0, 2, 3)) / part.square().sum((0, 2, 3)).clamp(min=_LEAST)
    if not isinstance(layer.gain, nn.Parameter):
        root = math.sqrt(layer.prefix + math.prod(layer.cells(size)))
        gain_h = torch.full_like(gain_h, root if layer.gain == "auto" else layer.gain)
    error = (rest - gain_h[:, None, None] * part).square().sum((0, 2, 3))
    around_mean = (target - target.mean((0, 2), keepdim=True)).square().sum((0, 2, 3))
    error_h = (error / around_mean.clamp(min=_LEAST)).nan_to_num(nan=torch.inf)
    return _Fit(shift_hd, factor_h, gain_h, error_h)


def _with_gain(layer: LaplacianAttention, gain: float) -> LaplacianAttention:
    """A copy that whitens by the batch that it is given, with another gain."""
    other = copy.deepcopy(layer).train()
    del other.gain
    other.gain = gain
    return other


def _fold(layer: LaplacianAttention, fit: _Fit) -> None:
    """q -> factor q, k -> factor (k + shift), and the gain."""
    factor, dim = fit.factor_h.repeat_interleave(layer.head_dim), layer.dim
    layer.qkv.weight[: 2 * dim] *= factor.repeat(2)[:, None]
    if layer.qkv.bias is not None:
        layer.qkv.bias[: 2 * dim] *= factor.repeat(2)
        layer.qkv.bias[dim : 2 * dim] += factor * fit.shift_hd.flatten()
    if isinstance(layer.gain, nn.Parameter):
        layer.gain.copy_(fit.gain_h)


@torch.no_grad()
def fit_reduced(layer: GridAttention, old: Any, x_bnc: Tensor, size: Size) -> None:
    """PVT v2 takes keys and values from a smaller image, which a convolution makes; here every token has its own. Their
    projection starts as the least-squares one: from tokens averaged over the cells of the smaller image."""
    found: list[Tensor] = []
    hook = old.kv.register_forward_hook(lambda module, inputs, output: found.append(output))
    try:
        old(x_bnc, size)
    finally:
        hook.remove()
    cells = (7, 7) if old.pool is not None else tuple(length // old.sr.stride[0] for length in size)
    image = x_bnc.mT.unflatten(-1, size)
    means = nn.functional.adaptive_avg_pool2d(image, cells).flatten(2).mT.flatten(0, 1).double()
    if layer.qkv.bias is not None:
        means = torch.cat([means, torch.ones_like(means[:, :1])], dim=1)
    gram = means.mT @ means
    gram.diagonal().add_(1e-4 * gram.diagonal().mean())
    solution = torch.linalg.solve(gram, means.mT @ found[0].flatten(0, 1).double()).mT.to(x_bnc.dtype)
    layer.qkv.weight[layer.dim :] = solution[:, : layer.dim]
    if layer.qkv.bias is not None:
        layer.qkv.bias[layer.dim :] = solution[:, layer.dim]
