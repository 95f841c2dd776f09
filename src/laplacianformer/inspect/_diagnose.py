"""Diagnose a model's attention on real images: dead kernels, inaccurate inverses, attention that does nothing, numbers
that are not finite."""

import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from laplacianformer import ops
from laplacianformer.attention import AblationAttention, LaplacianAttention
from laplacianformer.attention._grid import in_float32, mean_over_tokens
from laplacianformer.inspect._branch import changed
from laplacianformer.ops._pooling import Size
from laplacianformer.ops._precision import without_autocast


@dataclass
class LayerDiagnosis:
    """One attention layer. `kernel` is C; `residual` and `condition` are the worst over images and heads."""

    layer: str
    tokens: int
    landmarks: int
    query_dependence: float  # part of the global branch that differs between queries: 0, a mere mean, to 1
    contribution: float  # of the global branch to the residual stream after the layer; NaN: there is none
    kernel_mean: float  # healthy: 0.01 to 0.9
    kernel_spread: float  # standard deviation over queries and landmarks
    residual: float  # |I - (W + eps I) X|_F / sqrt(m) of Newton-Schulz; 0: nothing to solve, NaN: another solver
    condition: float  # condition number of W + eps I
    whitening_least: float  # smallest and largest factor that a column of C is multiplied by
    whitening_most: float
    not_finite: int  # numbers in C, W and L that are NaN or infinite


class Diagnosis(list[LayerDiagnosis]):
    """One row per layer, in order; as text it is a table."""

    def table(self) -> Table:
        table = Table(title="Attention layers")
        for field in fields(LayerDiagnosis):
            table.add_column(
                field.name.replace("_", " "),
                justify="left" if field.name == "layer" else "right",
                no_wrap=field.name == "layer",
            )
        for row in self:
            values = [getattr(row, field.name) for field in fields(row)]
            table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in values))
        return table

    def __str__(self) -> str:
        text = io.StringIO()
        Console(width=190, file=text).print(self.table())
        return text.getvalue()


@torch.no_grad()
def diagnose(model: nn.Module, images: Tensor) -> Diagnosis:
    """Run `images` through `model` as it is (training or evaluation mode) and report on each Laplacian attention layer.

    Running statistics and everything else in the model stay as they are. Memory: one N x m kernel per layer.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LaplacianAttention)}
    if images.numel() == 0:
        raise ValueError(f"expected at least one image, got {tuple(images.shape)}")
    if not layers:
        raise ValueError(f"{type(model).__name__} has no LaplacianAttention to diagnose")
    found = Diagnosis()
    saved = {name: buffer.clone() for name, buffer in model.named_buffers()}
    watching = _Watching(model, layers, found)
    try:
        with watching.hooks:
            model(images)
    finally:
        for name, buffer in model.named_buffers():
            buffer.copy_(saved[name])
    return found


class _Watching:
    """What is seen of each layer when a model runs: the input and output of its branch, and the stream around it."""

    def __init__(self, model: nn.Module, layers: dict[str, LaplacianAttention], found: Diagnosis) -> None:
        self.found, self.hooks = found, ExitStack()
        self.modules = dict(model.named_modules())
        self.inputs: dict[str, Any] = {}  # of the modules around layers, by name
        self.branches: dict[str, Tensor] = {}  # by layer
        for name in dict.fromkeys(part for layer in layers for part in _around(layer)):
            self._add(self.modules[name].register_forward_pre_hook(partial(self._enter, name)))
        for name, layer in layers.items():
            self.hooks.enter_context(changed(layer, partial(self._keep, name)))
            self._add(layer.register_forward_hook(partial(self._leave, name), with_kwargs=True))

    def _add(self, hook: Any) -> None:
        self.hooks.callback(hook.remove)

    def _enter(self, name: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.inputs[name] = inputs[0] if inputs else None

    def _keep(self, name: str, mixed_bhnd: Tensor, mask_bn: Tensor | None) -> Tensor:
        self.branches[name] = mixed_bhnd
        return mixed_bhnd

    def _leave(self, name: str, layer: Any, inputs: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> None:
        self.found.append(self._diagnose(name, layer, output, *inputs, **named))

    def _diagnose(
        self, name: str, layer: LaplacianAttention, output: Tensor, x: Tensor, size: Size, mask: Tensor | None = None
    ) -> LayerDiagnosis:
        with without_autocast(x.device):
            (branch_bhnd,) = in_float32(self.branches.pop(name))  # zeros where the mask is False
            varying_bhnd = branch_bhnd - mean_over_tokens(branch_bhnd, mask)
            if mask is not None:
                varying_bhnd = varying_bhnd.masked_fill(~mask[:, None, :, None], 0)
            branch_bnc = branch_bhnd.transpose(1, 2).flatten(2)
            added = F.linear(branch_bnc, layer.proj.weight.to(branch_bnc.dtype))
            stream, scaled = self._stream(name, x, output)
            if mask is not None:
                stream = stream.masked_fill(~mask[..., None], 0)
            measured = {
                "query_dependence": (varying_bhnd.norm() / branch_bhnd.norm()).item(),
                "contribution": (scaled(added).norm() / stream.norm()).item(),
            }
            return _diagnose_kernel(name, layer, x, size, mask, **measured)

    def _stream(self, name: str, x: Tensor, output: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The residual stream after a layer, and what scales the output of the layer before it is added.

        The stream is what enters the innermost module around the layer with other tokens than the layer; NaN where
        there is no such module.
        """
        for around in _around(name):
            stream = self.inputs.get(around)
            if isinstance(stream, Tensor) and stream is not x and stream.shape == x.shape:
                scaled = getattr(self.modules[around], "ls1", nn.Identity())  # timm's name of a layer scale
                before, added = in_float32(stream, scaled(output))
                return before + added, scaled
        return torch.full_like(x, torch.nan), nn.Identity()


def _around(name: str) -> Iterator[str]:
    """The names of the modules around one, from the inside."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _diagnose_kernel(
    name: str, layer: LaplacianAttention, x: Tensor, size: Size, mask: Tensor | None, **branch: float
) -> LayerDiagnosis:
    laid_out = layer.lay_out(mask, size)
    q, k, v = in_float32(*layer.project(x, size))
    if laid_out is not None:
        v = v.masked_fill(laid_out.absent_tokens, 0)
    found = layer.decompose(q, k, size, laid_out)
    c, w, factor, values = found.c_bhnm, found.gram(), found.factor, found.solve(v)
    counted = c
    if laid_out is not None:
        there = laid_out.mask_bn[:, None, :, None] & laid_out.landmarks_bm[:, None, None, :]
        counted = c[there.expand_as(c)]
    return LayerDiagnosis(
        layer=name,
        tokens=c.shape[-2],
        landmarks=c.shape[-1],
        **branch,
        kernel_mean=counted.mean().item(),
        kernel_spread=counted.std().item() if counted.numel() > 1 else 0.0,
        residual=_residual(layer, w) if not layer.is_exact(size) else 0.0,
        condition=_condition(w, layer.eps),
        whitening_least=1.0 if factor is None else factor.abs().amin().item(),
        whitening_most=1.0 if factor is None else factor.abs().amax().item(),
        not_finite=sum(int((~part.isfinite()).sum()) for part in (c, w, values)),
    )


def _residual(layer: LaplacianAttention, w: Tensor) -> float:
    if isinstance(layer, AblationAttention) and layer.solver != "newton_schulz":
        return float("nan")
    start = layer.newton_schulz_start
    return ops.newton_schulz_residuals(w, layer.iterations, layer.eps, start=start)[-1].amax().item()


def _condition(w: Tensor, eps: float) -> float:
    if not w.isfinite().all():
        return float("nan")
    values = torch.linalg.svdvals(w + eps * torch.eye(w.shape[-1], dtype=w.dtype, device=w.device))
    return (values[..., 0] / values[..., -1]).amax().item()
