"""Diagnose a model's attention on real images: dead kernels, inaccurate inverses, numbers that are not finite."""

import io
from dataclasses import dataclass, fields

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from laplacianformer import ops
from laplacianformer.attention import AblationAttention, LaplacianAttention
from laplacianformer.attention._grid import in_float32
from laplacianformer.ops._pooling import Size
from laplacianformer.ops._precision import without_autocast


@dataclass
class LayerDiagnosis:
    """One attention layer. `kernel` is C; `residual` and `condition` are the worst over images and heads."""

    layer: str
    tokens: int
    landmarks: int
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
        Console(width=140, file=text).print(self.table())
        return text.getvalue()


@torch.no_grad()
def diagnose(model: nn.Module, images: Tensor) -> Diagnosis:
    """Run `images` through `model` as it is (training or evaluation mode) and report on each Laplacian attention.

    Running statistics and everything else in the model stay as they are. Memory: one N x m kernel per layer.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LaplacianAttention)}
    if images.numel() == 0:
        raise ValueError(f"expected at least one image, got {tuple(images.shape)}")
    if not layers:
        raise ValueError(f"{type(model).__name__} has no LaplacianAttention to diagnose")
    found = Diagnosis()
    hooks = [
        module.register_forward_pre_hook(
            lambda module, inputs, name=name: found.append(_diagnose_layer(name, module, *inputs))
        )
        for name, module in layers.items()
    ]
    saved = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        model(images)
    finally:
        for hook in hooks:
            hook.remove()
        for name, buffer in model.named_buffers():
            buffer.copy_(saved[name])
    return found


def _diagnose_layer(
    name: str, layer: LaplacianAttention, x: Tensor, size: Size, mask: Tensor | None = None
) -> LayerDiagnosis:
    laid_out = layer.lay_out(mask, size)
    with without_autocast(x.device):
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
        kernel_mean=counted.mean().item(),
        kernel_spread=counted.std().item(),
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
