"""The layer's whole definition in plain float64, unfolded, and the helpers of these tests.

Written from the formulas of the documentation: every matrix is stored, W is inverted by torch.linalg.inv,
and nothing of `laplacianformer.ops` or of the layer's own methods is called.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from laplacianformer.attention import AblationAttention, LaplacianAttention
from laplacianformer.attention._options import needs_ablation

DIM, HEADS = 16, 2
Size = tuple[int, int]


class Result(NamedTuple):
    c: Tensor
    w: Tensor
    landmark_values: Tensor
    z: Tensor
    values: Tensor
    mixed: Tensor
    out: Tensor


def build(seed: int = 0, *, dim: int = DIM, heads: int = HEADS, **options: Any) -> LaplacianAttention:
    """A float64 layer in which nothing is at its initial value, so that nothing can be left out unseen."""
    torch.manual_seed(seed)
    layer = layer_class(options)(dim, heads, **options).double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name != "qkv.weight":
                parameter += 0.3 * torch.rand_like(parameter)
        for name, buffer in layer.named_buffers():
            if name.endswith("running_var"):
                buffer.copy_(0.01 + 0.05 * torch.rand_like(buffer))
    return layer


def layer_class(options: dict[str, Any]) -> type[LaplacianAttention]:
    """The layer that has these options: the product, or the one for comparisons."""
    return AblationAttention if needs_ablation(options) else LaplacianAttention


def tokens(size: Size, batch: int = 2, dim: int = DIM, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, size[0] * size[1], dim, generator=generator, dtype=torch.float64).to(dtype)


def kernel_matrix(x: Tensor, y: Tensor, kernel: str, scale: float) -> Tensor:
    difference = x[..., :, None, :] - y[..., None, :, :]
    if kernel == "laplacian":
        return (-difference.abs().sum(-1) / scale).exp()
    return (-(difference**2).sum(-1) / (2 * scale**2)).exp()


def rotate(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """As complex numbers: channel j with channel j + d/2, first half of the pairs by row, second by column.

    `rows` and `columns` are the coordinates of every single token, (N,).
    """
    half = x.shape[-1] // 2
    speed = 100.0 ** (-torch.arange(half // 2, dtype=torch.float64) / (half // 2))
    angle = torch.cat([rows[:, None] * speed, columns[:, None] * speed], dim=-1)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], dim=-1)


def pool_map(x: Tensor, size: Size, cells: Size) -> Tensor:
    """(B, heads, N, d) -> (B, heads, m, d) by torch's own adaptive pooling."""
    images = x.transpose(-1, -2).reshape(-1, x.shape[-1], *size)
    return F.adaptive_avg_pool2d(images, cells).flatten(2).transpose(1, 2).reshape(*x.shape[:2], -1, x.shape[-1])


def head_normalised(x: Tensor, state: dict[str, Tensor], name: str) -> Tensor:
    scale = state[f"qk_norm.{name}_scale"]
    return scale[:, None, None] * x / ((x**2).mean(-1, keepdim=True) + 1e-6).sqrt()


def coordinates(size: Size) -> Tensor:
    return torch.stack(
        torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in size), indexing="ij"), dim=-1
    ).reshape(1, 1, -1, 2)


def inverse_square_root(covariance: Tensor, eps: float) -> Tensor:
    values, vectors = torch.linalg.eigh(covariance + eps * torch.eye(covariance.shape[-1], dtype=covariance.dtype))
    return vectors @ torch.diag_embed(values**-0.5) @ vectors.mT


def whitening_matrix(
    c: Tensor,
    whitening: str | None,
    running: Tensor | None,
    cells: Size,
    training: bool,
    relative_eps: float | None = None,
) -> Tensor:
    eps = 1e-5
    if relative_eps is not None:
        spread = ((c - c.mean((0, 2), keepdim=True)) ** 2).mean((0, 2)) + relative_eps * (c**2).mean((0, 2))
        stored = F.adaptive_avg_pool2d(running, cells).flatten(1)
        return torch.diag_embed((spread if training else stored) ** -0.5)
    if whitening == "full":
        centred = c - c.mean(-2, keepdim=True)
        return inverse_square_root(centred.mT @ centred / c.shape[-2], eps)
    if whitening is None:
        variance = torch.ones(c.shape[-1], dtype=c.dtype) - eps
    elif whitening == "instance":
        variance = ((c - c.mean(-2, keepdim=True)) ** 2).mean(-2)
    elif training:
        variance = ((c - c.mean((0, 2), keepdim=True)) ** 2).mean((0, 2))
    else:
        variance = F.adaptive_avg_pool2d(running, cells).flatten(1)
    return torch.diag_embed((variance + eps) ** -0.5)


def evaluate(  # long: the whole definition, to be read in one piece
    x: Tensor,
    size: Size,
    state: dict[str, Tensor],
    *,
    heads: int = HEADS,
    training: bool = False,
    scale: float = 4.0,
    grid: int | None = 7,
    ratio: int | None = None,
    kernel: str = "laplacian",
    gram: str = "keys",
    solver: str = "newton_schulz",
    iterations: int = 6,
    eps: float = 1e-2,
    whitening: str | None = "running",
    gain: float | str = "auto",
    landmarks: str = "pool",
    rope: bool = True,
    tied: bool = False,
    relative_eps: float | None = None,
    normalised_values: bool = False,
    qk_norm: bool = False,
) -> Result:
    """out = proj(Z L + DWC(V)) for tokens x on a grid, from the parameters in `state`, at convergence of the solver."""
    dim, (height, width) = x.shape[-1], size
    projected = F.linear(x, state["qkv.weight"], state["qkv.bias"]).split(dim, dim=-1)
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (projected[0], *projected[-2:]))
    if tied:
        k = q
    if qk_norm:
        q, k = (head_normalised(part, state, name) for part, name in ((q, "query"), (k, "query" if tied else "key")))

    if grid is not None:
        cells = (min(height, grid), min(width, grid))
    else:
        step = ratio or 1
        cells = (-(-height // step), -(-width // step))

    def landmark(points: Tensor) -> Tensor:
        if landmarks == "conv":
            images = points.transpose(1, 2).flatten(2).transpose(1, 2).unflatten(2, size)
            filtered = F.conv2d(images, state["landmark_filter.weight"], padding=1, groups=dim)
            points = filtered.flatten(2).transpose(1, 2).unflatten(-1, (heads, -1)).transpose(1, 2)
        return pool_map(points, size, cells)

    km, qm = landmark(k), landmark(q)
    if rope:
        place, centre = coordinates(size), pool_map(coordinates(size), size, cells)
        q, k = rotate(q, *place[0, 0].T), rotate(k, *place[0, 0].T)
        km, qm = rotate(km, *centre[0, 0].T), rotate(qm, *centre[0, 0].T)

    n, m = k.shape[-2], km.shape[-2]
    c = kernel_matrix(q, km, kernel, scale)
    left = km if gram == "keys" else qm
    w, b = kernel_matrix(left, km, kernel, scale), kernel_matrix(left, k, kernel, scale)
    identity = torch.eye(m, dtype=x.dtype)
    if cells == size and landmarks == "pool":
        values = v
    elif normalised_values:
        a = w + eps * identity
        weights = a.sum(-1, keepdim=True) * b / b.sum(-1, keepdim=True)
        values = torch.linalg.inv(a) @ (weights @ v)
    elif gram == "keys" or solver == "newton_schulz":
        values = m / n * torch.linalg.inv(w + eps * identity) @ (b @ v)
    else:
        values = m / n * torch.linalg.inv(w.mT @ w + eps * identity) @ (w.mT @ (b @ v))

    d = whitening_matrix(c, whitening, state.get("whitening.running_var"), cells, training, relative_eps)
    gains = state["gain"][:, None, None] if gain == "learned" else m**0.5 if gain == "auto" else gain
    z = (1 + gains * (c - c.mean(-1, keepdim=True)) @ d) / m
    mixed = z @ values

    images = v.transpose(1, 2).flatten(2).transpose(1, 2).unflatten(2, size)
    local = F.conv2d(images, state["dwc.weight"], state["dwc.bias"], padding=1, groups=dim)
    joined = mixed.transpose(1, 2).flatten(2) + local.flatten(2).transpose(1, 2)
    return Result(c, w, values, z, v, mixed, F.linear(joined, state["proj.weight"], state["proj.bias"]))
