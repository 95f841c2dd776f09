"""Small softmax models of every family that can be converted."""

import json
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from laplacianformer import save_weights
from laplacianformer.training import Silent
from tests.helpers import INPUT

SIDE = 32
VIT: dict[str, Any] = {"img_size": SIDE, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}
PVT: dict[str, Any] = {"depths": (1, 1), "embed_dims": (16, 16), "num_heads": (2, 2), "sr_ratios": (2, 1)}
OWN = {"depths": (1, 1), "embed_dims": (16, 16), "num_heads": (2, 2), "mlp_ratios": (2, 2), "attention": "softmax"}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("vit_tiny_patch16_224", VIT),
    "deit": ("deit_tiny_distilled_patch16_224", VIT),
    "registers": ("vit_small_patch14_reg4_dinov2", VIT),
    "pvt": ("pvt_v2_b0", {**PVT, "mlp_ratios": (2, 2), "num_classes": 5}),
    "own": ("laplacianformer_nano", {**OWN, "num_classes": 5}),
}
QUICK = (
    *("match.epochs=6", "match.lr=0.002", "match.batch_size=6", "match.warmup_epochs=0", "convert.match_samples=null"),
    *("distil.epochs=2", "distil.batch_size=6", "distil.warmup_epochs=0", "data.val_samples=null", "data.workers=0"),
    *("convert.attention_args={grid: 2, gain: learned}", "convert.calibration_images=8"),
    *("run.accelerator=cpu", "run.devices=1", "run.tensorboard=false", "run.log_steps=2", "run.checkpoint_steps=3"),
)
# For exports, where tracing takes the time: one epoch, and few Newton-Schulz steps, as each is a part of the graph.
STEPS = "convert.attention_args={grid: 2, gain: learned, iterations: 2}"
ONCE = (*QUICK, "match.epochs=1", "distil.epochs=1", STEPS)
ONE_STAGE: dict[str, Any] = {"depths": (1,), "embed_dims": (16,), "num_heads": (2,), "mlp_ratios": (2,)}  # of "own"


def teacher(family: str = "vit", **arguments: Any) -> Any:
    """Random weights, larger than those that training starts from: attention that is not the mean of all values."""
    name, given = FAMILIES[family]
    torch.manual_seed(0)
    model: Any = timm.create_model(name, **{**given, **arguments})
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=1.5 * parameter.shape[1] ** -0.5)
            elif parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def arguments(family: str = "vit") -> dict[str, Any]:
    """What `teacher` is built with, beside num_classes."""
    return {key: value for key, value in FAMILIES[family][1].items() if key != "num_classes"}


def images(count: int = 2, side: int | tuple[int, int] = SIDE) -> torch.Tensor:
    torch.manual_seed(1)
    height, width = (side, side) if isinstance(side, int) else side
    coarse = torch.randn(count, 3, 4, 4)
    return nn.functional.interpolate(coarse, (height, width), mode="bilinear")


def save_teacher(path: Path, model: Any, **changed: Any) -> None:
    """A weights file of `teacher(**changed)`, a ViT, converted or not."""
    given = {**VIT, **changed}
    size = [3, given["img_size"], given["img_size"]]
    said = {"model_args": json.dumps(given), "input": json.dumps({**INPUT, "size": size})}
    save_weights(path, model, classes=list("abcde"), metadata=said)


class Stop(Exception):
    """What `Stopping` raises."""


class Stopping(Silent):
    """Ends a run in the middle: before the checkpoint of the step that follows."""

    def __init__(self, phase: str, step: int) -> None:
        self.phase, self.step, self.now = phase, step, ""

    def start(self, title: str, steps: int, step: int) -> None:
        self.now = title

    def advance(self, step: int) -> None:
        if self.now.endswith(self.phase) and step == self.step:
            raise Stop
