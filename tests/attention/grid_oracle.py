"""The layer on any grid, with a mask and leading tokens, item by item in plain float64.

Each item is cut down to the tokens that count before anything is computed, and landmarks are made cell by cell in
loops: nothing of `laplacianformer` is called, and nothing is padded but the convolution.
"""

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

THETA = {1: 10_000.0, 2: 100.0, 3: 100.0}
CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class Item(NamedTuple):
    """The tokens of one item that count, and its landmarks. `columns`: where each stands among all landmarks."""

    q: Tensor  # (heads, n, d), rotated
    k: Tensor
    v: Tensor
    km: Tensor  # (heads, m, d)
    columns: list[int]
    exact: bool
    order: list[int]  # of the values, where every token is a landmark
    rows: list[int]  # where the tokens stand in the batch
    cells: tuple[int, ...]


def rotate(x: Tensor, positions: list[tuple[float, ...] | None], axes: int) -> Tensor:
    """Each row by the angles of its position, as complex numbers; None is not rotated."""
    half = x.shape[-1] // 2
    each = half // axes
    speed = THETA[axes] ** (-torch.arange(each, dtype=torch.float64) / each)
    angle = torch.zeros(len(positions), half, dtype=torch.float64)
    for row, position in enumerate(positions):
        for axis, coordinate in enumerate(position or ()):
            angle[row, axis * each : (axis + 1) * each] = coordinate * speed
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], dim=-1)


def cell_range(cell: int, cells: int, length: int) -> range:
    return range(cell * length // cells, -(-(cell + 1) * length // cells))


def cut(  # long: everything that a mask does to one item
    q: Tensor, k: Tensor, v: Tensor, size: tuple[int, ...], grid: tuple[int, ...], mask: Tensor, prefix: int, rope: bool
) -> Item:
    """One item, (heads, prefix + N, d) each."""
    axes = len(size)
    places = list(itertools.product(*(range(length) for length in size)))
    counted = [index for index in range(len(places)) if mask[prefix + index]]
    extent = tuple(max((places[i][a] + 1 for i in counted), default=0) for a in range(axes))
    cells = tuple(max(1, min(length, most)) for length, most in zip(extent, grid, strict=True))
    most_cells = tuple(min(length, most) for length, most in zip(size, grid, strict=True))

    leading = [index for index in range(prefix) if mask[index]]
    rows = leading + [prefix + index for index in counted]
    points, columns, positions, order = [k[:, i] for i in leading], list(leading), [None] * len(leading), list(leading)
    for number, cell in enumerate(itertools.product(*(range(c) for c in most_cells))):
        if any(c >= own for c, own in zip(cell, cells, strict=True)):
            continue
        ranges = [cell_range(c, own, length) for c, own, length in zip(cell, cells, extent, strict=True)]
        members = [i for i in counted if all(places[i][a] in ranges[a] for a in range(axes))]
        if not members:
            continue
        points.append(k[:, [prefix + i for i in members]].mean(1))
        columns.append(prefix + number)
        positions.append(tuple((r[0] + r[-1]) / 2 for r in ranges))
        order.append(prefix + members[0])
    km = torch.stack(points, 1) if points else k[:, :0]
    q, k, v_rows = q[:, rows], k[:, rows], v[:, rows]
    if rope:
        at = [None] * len(leading) + [places[i] for i in counted]
        q, k, km = rotate(q, at, axes), rotate(k, at, axes), rotate(km, positions, axes)
    exact = all(length <= own for length, own in zip(extent, cells, strict=True))
    return Item(q, k, v_rows, km, columns, exact, [rows.index(i) for i in order] if exact else [], rows, cells)


def kernel(x: Tensor, y: Tensor, scale: float) -> Tensor:
    return (-(x[..., :, None, :] - y[..., None, :, :]).abs().sum(-1) / scale).exp()


def batch_variance(items: list[Item], heads: int, landmarks: int, scale: float) -> Tensor:
    """Of each landmark's column over the queries of the items that have it, (heads, landmarks)."""
    found: list[list[Tensor]] = [[] for _ in range(landmarks)]
    for item in items:
        c = kernel(item.q, item.km, scale)
        for j, column in enumerate(item.columns):
            found[column].append(c[:, :, j])
    return torch.stack(
        [torch.cat(part, -1).var(-1, correction=0) if part else torch.zeros(heads) for part in found], -1
    ).to(torch.float64)


def resize(stored: Tensor, cells: tuple[int, ...]) -> Tensor:
    pools = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
    return pools[len(cells)](stored[None], cells)[0]  # type: ignore[operator]


def evaluate(  # long: the whole definition
    x: Tensor,
    size: tuple[int, ...],
    mask: Tensor,
    state: dict[str, Tensor],
    *,
    heads: int,
    grid: tuple[int, ...],
    prefix: int = 0,
    rope: bool = True,
    training: bool = False,
    scale: float = 4.0,
    eps: float = 1e-2,
    gain: float | None = None,
) -> Tensor:
    """proj(Z L + DWC(V)) at convergence of the solver; zeros where the mask is False."""
    batch, _, dim = x.shape
    x = torch.where(mask[..., None], x, 0.0)
    parts = F.linear(x, state["qkv.weight"], state["qkv.bias"]).split(dim, dim=-1)
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
    items = [cut(q[b], k[b], v[b], size, grid, mask[b], prefix, rope) for b in range(batch)]
    most_cells = tuple(min(length, most) for length, most in zip(size, grid, strict=True))
    of_batch = batch_variance(items, heads, prefix + math.prod(most_cells), scale) if training else None

    mixed = torch.zeros_like(v)
    for b, item in enumerate(items):
        n, m = len(item.rows), len(item.columns)
        if n == 0:
            continue
        c, w = kernel(item.q, item.km, scale), kernel(item.km, item.km, scale)
        if item.exact:
            values = item.v[:, item.order]
        else:
            identity = torch.eye(m, dtype=torch.float64)
            values = m / n * torch.linalg.inv(w + eps * identity) @ (kernel(item.km, item.k, scale) @ item.v)
        if of_batch is not None:
            variance = of_batch[:, item.columns]
        else:
            on_grid = torch.zeros(heads, *most_cells, dtype=torch.float64)
            on_grid[(slice(None), *(slice(c) for c in item.cells))] = resize(state["whitening.running_var"], item.cells)
            before = state.get("whitening.prefix_running_var", torch.zeros(heads, 0, dtype=torch.float64))
            variance = torch.cat([before, on_grid.flatten(1)], dim=1)[:, item.columns]
        z = (
            1 + (m**0.5 if gain is None else gain) * (c - c.mean(-1, keepdim=True)) * (variance[:, None] + 1e-5) ** -0.5
        ) / m
        mixed[b][:, item.rows] = z @ values

    local = torch.zeros(batch, prefix + math.prod(size), dim, dtype=torch.float64)
    clean = torch.where(mask[..., None], parts[2], 0.0)[:, prefix:].transpose(1, 2).unflatten(2, size)
    convolved = CONVOLUTIONS[len(size)](clean, state["dwc.weight"], state["dwc.bias"], padding=1, groups=dim)
    local[:, prefix:] = convolved.flatten(2).transpose(1, 2)
    joined = mixed.transpose(1, 2).flatten(2) + local
    return torch.where(mask[..., None], F.linear(joined, state["proj.weight"], state["proj.bias"]), 0.0)
