"""Shared by the tests of the commands: a small model in a weights file, and generated images."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.models import _registry, get_pretrained_cfg
from torch import nn

from laplacianformer.weights import save_weights
from tests.model.helpers import TWO_STAGES, perturbed

CLASSES = ("zebra", "ant", "cat", "dog", "owl", "fox", "bee")  # not in alphabetical order
INPUT = {"size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.25] * 3, "interpolation": "bicubic", "crop_pct": 1.0}


def small_model(classes: int = len(CLASSES), **arguments: Any) -> nn.Module:
    """Two stages; its head is large, so that images of different colours get different classes."""
    torch.manual_seed(0)
    model = timm.create_model("laplacianformer_nano", num_classes=classes, **{**TWO_STAGES, **arguments})
    model = perturbed(model).eval()
    with torch.no_grad():
        model.head.weight.mul_(40)
    return model


def save_small(path: Path, **metadata: str) -> nn.Module:
    model = small_model()
    save_weights(path, model, classes=CLASSES, metadata={"input": json.dumps(INPUT), **metadata})
    return model


SWIN = {"img_size": 32, "depths": [2], "embed_dim": 6, "num_heads": [1]}


def save_swin(path: Path) -> None:
    """A small model with buffers that are not in its file, as many as `img_size` asks for."""
    model = timm.create_model("swin_tiny_patch4_window7_224", num_classes=len(CLASSES), **SWIN)
    stated = json.dumps({**SWIN, "num_classes": len(CLASSES)})
    save_weights(path, model, classes=CLASSES, metadata={"input": json.dumps(INPUT), "model_args": stated})


def with_local_weights(monkeypatch: pytest.MonkeyPatch, name: str, path: Path) -> nn.Module:
    """Let timm take its weights of a model from a file, which it loads as what it downloads; the model in the file."""
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name)
    torch.save(model.state_dict(), path)
    config = dataclasses.replace(get_pretrained_cfg(name), file=str(path))
    monkeypatch.setitem(_registry._model_pretrained_cfgs, name, config)
    return model


def picture(seed: int, size: tuple[int, int] = (32, 32)) -> Image.Image:
    """Smooth colours, different for each seed; size is (width, height)."""
    coarse = np.random.default_rng(seed).integers(0, 256, (3, 3, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
