"""laplacian_attention: the definition in float64, its public edge, and who sees it as a composition."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from laplacianformer import ops

SIZE, CELLS = (5, 7), (3, 4)


def inputs(dtype: torch.dtype = torch.float64, batch: int = 2, width: int = 8, size: Any = SIZE) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (batch, 3, size[0] * size[1], width)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3)]


def definition(
    q: Tensor, k: Tensor, v: Tensor, size: Any, cells: Any, scale: float, variance: Any, gain: Any = 1.0
) -> tuple[Tensor, Tensor | None]:
    """Z L with every matrix stored and W inverted by torch.linalg.inv."""

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        return torch.exp(-(x[..., :, None, :] - y[..., None, :, :]).abs().sum(-1) / scale)

    maps = k.transpose(-1, -2).flatten(0, 1).unflatten(2, size)
    km = torch.nn.functional.adaptive_avg_pool2d(maps, cells).flatten(2).transpose(1, 2).unflatten(0, k.shape[:2])
    c, w, b = kernel(q, km), kernel(km, km), kernel(km, k)
    m, n = km.shape[-2], k.shape[-2]
    values = v if tuple(cells) == tuple(size) else m / n * torch.linalg.inv(w + 1e-2 * torch.eye(m)) @ (b @ v)
    if isinstance(variance, str):
        variance = (c - c.mean((0, 2), keepdim=True)).square().mean((0, 2))
    d = 1.0 if variance is None else (variance + 1e-5).rsqrt()[:, None]
    gain = gain[:, None, None] if isinstance(gain, Tensor) else gain
    z = (1 + gain * (c - c.mean(-1, keepdim=True)) * d) / m
    return z @ values, variance


@pytest.mark.parametrize("cells", [CELLS, (1, 1), (5, 7)], ids=str)
@pytest.mark.parametrize("variance", ["batch", "synced", None, "given"])
def test_it_is_the_definition_forward_and_backward(backend: str, variance: Any, cells: Any) -> None:
    tokens, gain = inputs(), torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    if variance == "given":
        variance = torch.rand(3, cells[0] * cells[1], dtype=torch.float64) + 0.01
    found = [t.clone().requires_grad_() for t in (*tokens, gain)]
    expected = [t.clone().requires_grad_() for t in (*tokens, gain)]
    out, used = ops.laplacian_attention(
        *found[:3], SIZE, cells, 4.0, gain=found[3], variance=variance, iterations=40, backend=backend
    )
    wanted, wanted_variance = definition(*expected[:3], SIZE, cells, 4.0, variance, expected[3])
    probe = torch.randn_like(wanted)
    (out * probe).sum().backward()
    (wanted * probe).sum().backward()
    torch.testing.assert_close(out, wanted, rtol=1e-8, atol=1e-8)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-7, atol=1e-7)
    if variance is None:
        assert used is None
    else:
        torch.testing.assert_close(used, wanted_variance.detach(), rtol=1e-9, atol=1e-12)
        assert not used.requires_grad


def angles(rows: int, width: int = 8) -> tuple[Tensor, Tensor]:
    turn = torch.arange(rows * width // 2, dtype=torch.float64).view(rows, width // 2) / 7
    return turn.cos(), turn.sin()


@pytest.mark.parametrize("cells", [CELLS, SIZE], ids=str)
@pytest.mark.parametrize("variance", ["batch", None])
def test_rotated_float32_is_the_float64_composition(backend: str, variance: Any, cells: Any) -> None:
    """Forward and every gradient, with rotations; on `cpu`, a variance of the batch makes it one C++ call."""
    rotations = {"rotation": angles(35), "cell_rotation": angles(cells[0] * cells[1])}
    results = []
    for dtype, name in ((torch.float32, backend), (torch.float64, "reference")):
        tokens = [t.requires_grad_() for t in inputs(dtype)]
        out, _ = ops.laplacian_attention(*tokens, SIZE, cells, 4.0, variance=variance, backend=name, **rotations)
        grads = torch.autograd.grad(out.square().sum(), tokens)
        results.append([out.double(), *(grad.double() for grad in grads)])
    for found, exact in zip(*results, strict=True):
        torch.testing.assert_close(found, exact, rtol=1e-3, atol=1e-4 * exact.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("variance", ["batch", None])
def test_other_dtypes_are_computed_in_float32(backend: str, dtype: torch.dtype, variance: Any) -> None:
    tokens = inputs(dtype)
    out, _ = ops.laplacian_attention(*tokens, SIZE, CELLS, 4.0, variance=variance, iterations=40, backend=backend)
    exact, _ = definition(*(t.double() for t in tokens), SIZE, CELLS, 4.0, variance)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=2e-5 + torch.finfo(dtype).eps)


def test_values_may_be_of_another_width(backend: str) -> None:
    q, k, _ = inputs(torch.float32)
    values = torch.randn(2, 3, 35, 5)
    out, _ = ops.laplacian_attention(q, k, values, SIZE, CELLS, 4.0, iterations=40, backend=backend)
    exact, _ = definition(q.double(), k.double(), values.double(), SIZE, CELLS, 4.0, "batch")
    torch.testing.assert_close(out.double(), exact, rtol=1e-4, atol=1e-4)


def test_a_given_variance_is_a_constant(backend: str) -> None:
    variance = torch.rand(3, 12, requires_grad=True)
    out, used = ops.laplacian_attention(*inputs(torch.float32), SIZE, CELLS, 4.0, variance=variance, backend=backend)
    assert not out.requires_grad
    assert torch.equal(used, variance)


def test_heads_without_channels(backend: str) -> None:
    tokens = inputs(torch.float32, width=0)
    assert ops.laplacian_attention(*tokens, SIZE, CELLS, 4.0, backend=backend)[0].shape == (2, 3, 35, 0)


def test_an_empty_batch_is_empty(backend: str) -> None:
    tokens = inputs(torch.float32, batch=0)
    out, _ = ops.laplacian_attention(*tokens, SIZE, CELLS, 4.0, variance=None, backend=backend)
    assert out.shape == (0, 3, 35, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": (5, 8)}, r"size \(5, 8\) does not hold 35 tokens"),
        ({"size": (35,)}, "size and cells must have one number for each of one to three axes"),
        ({"size": (1, 1, 5, 7)}, "size and cells must have one number for each of one to three axes"),
        ({"prefix": 1}, r"size \(5, 7\) does not hold 35 tokens, 1 of them before the grid \(prefix\)"),
        ({"prefix": -1}, r"does not hold 35 tokens, -1 of them before the grid"),
        ({"mask": [[True] * 35] * 2}, "mask must be a tensor of bool, got list"),
        ({"mask": torch.ones(2, 35)}, r"mask must be bool, \(2, 35\), .*got torch.float32"),
        ({"mask": torch.ones(2, 34, dtype=torch.bool)}, r"mask must be bool, \(2, 35\), .*\(2, 34\)"),
        ({"cells": (6, 4)}, r"cells must be at least 1 and at most \(5, 7\).*got \(6, 4\)"),
        ({"cells": (0, 4)}, "cells must be at least 1"),
        ({"scale": 0.0}, "scale must be greater than 0"),
        ({"eps": -1.0}, "eps must be greater than 0"),
        ({"iterations": 0}, "iterations must be at least 1"),
        ({"gain": torch.ones(2)}, r"a gain per head must be \(3,\), got \(2,\)"),
        ({"variance": torch.ones(3, 11)}, r"variance must be \(3, 12\), got \(3, 11\)"),
        ({"variance": "image"}, "variance must be one of 'batch', 'synced', None, got 'image'"),
        ({"rotation": angles(35)}, "give both rotation and cell_rotation"),
        ({"rotation": angles(34), "cell_rotation": angles(12)}, r"rotation must be two \(35, 4\), got \(34, 4\)"),
        ({"rotation": angles(35), "cell_rotation": angles(11)}, r"cell_rotation must be two \(12, 4\)"),
        ({"rotation": angles(35, 4), "cell_rotation": angles(12)}, r"rotation must be two \(35, 4\), got \(35, 2\)"),
        ({"k": torch.zeros(2, 3, 35, 4)}, "expected q and k of one shape"),
        ({"v": torch.zeros(2, 3, 34, 8)}, "expected q and k of one shape"),
        ({"backend": "fast"}, "unknown backend 'fast'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_input_is_refused(changes: dict[str, Any], message: str) -> None:
    q, k, v = inputs(torch.float32)
    arguments = {"q": q, "k": k, "v": v, "size": SIZE, "cells": CELLS, "scale": 4.0, **changes}
    with pytest.raises((TypeError, ValueError), match=message):
        ops.laplacian_attention(**arguments)


def test_an_empty_batch_has_no_variance() -> None:
    with pytest.raises(ValueError, match="an empty batch has no variance"):
        ops.laplacian_attention(*inputs(torch.float32, batch=0), SIZE, CELLS, 4.0)


@pytest.mark.parametrize("variance", ["batch", None])
@pytest.mark.slow
def test_compiled_it_is_one_graph_with_the_same_numbers(variance: Any) -> None:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ops.laplacian_attention(q, k, v, SIZE, CELLS, 4.0, variance=variance)[0]

    tokens = [t.requires_grad_() for t in inputs(torch.float32)]
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    out, expected = compiled(*tokens), call(*tokens)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    grads, wanted = (torch.autograd.grad(each.square().sum(), tokens) for each in (out, expected))
    for found, one in zip(grads, wanted, strict=True):
        torch.testing.assert_close(found, one, rtol=1e-3, atol=1e-4)


def test_flop_counters_see_its_parts() -> None:
    with FlopCounterMode(display=False) as counter:
        ops.laplacian_attention(*inputs(torch.float32), SIZE, CELLS, 4.0)
    counted = counter.get_flop_counts()["Global"]
    names = {str(op) for op in counted}
    assert {"laplacianformer.laplacian_kernel", "laplacianformer.newton_schulz"} <= names


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_over_a_further_dimension() -> None:
    tokens = [torch.stack([t, 2 * t]) for t in inputs(torch.float32)]

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ops.laplacian_attention(q, k, v, SIZE, CELLS, 4.0, variance=None)[0]

    expected = torch.stack([call(*(t[i] for t in tokens)) for i in range(2)])
    torch.testing.assert_close(torch.func.vmap(call)(*tokens), expected, rtol=1e-4, atol=1e-5)
