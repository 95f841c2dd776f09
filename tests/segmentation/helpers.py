"""A segmenter of four narrow stages, and data sets of a few small files: seconds on one core."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image

from laplacianformer.segmentation import Segmenter, load_recipe, semantic_fpn, upernet

BACKBONE: dict[str, Any] = {
    "depths": [1, 1, 1, 1],
    "embed_dims": [16, 16, 16, 16],
    "num_heads": [1, 1, 1, 1],
    "mlp_ratios": [1, 1, 1, 1],
    "stem_stride": 4,
    "attention_args": {"grid": 3},
}
ARGS: dict[str, dict[str, int]] = {"semantic_fpn": {"channels": 16, "width": 64}, "upernet": {"channels": 16}}
BUILDERS = {"semantic_fpn": semantic_fpn, "upernet": upernet}
CLASSES = ["ground", "tree", "house"]


def small(name: str = "semantic_fpn", num_classes: int = 3, **arguments: Any) -> Segmenter:
    """In evaluation mode, with statistics and weights that are not those of the start."""
    torch.manual_seed(0)
    options = {"backbone_args": BACKBONE, **ARGS[name], **arguments}
    model = BUILDERS[name]("laplacianformer_nano", num_classes, **options)
    torch.nn.init.normal_(model.classifier.weight)  # so that every class is predicted somewhere
    model.train()(torch.randn(2, 3, 64, 64))
    return model.eval()


def labelled_folder(root: Path, train: int = 4, val: int = 2, size: tuple[int, int] = (48, 40)) -> Path:
    """root/{train,val}/*.png, root/{train,val}_labels/*.png and root/labels.yaml: three bands whose values are 0, 1, 2,
    and a border of the value 9, which is ignored."""
    generator = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val)):
        for folder in (root / split, root / f"{split}_labels"):
            folder.mkdir(parents=True)
        for number in range(count):
            values = np.broadcast_to((3 * np.arange(size[0]) // size[0])[None], size[::-1]).astype(np.uint8).copy()
            values[:2] = 9
            noise = generator.integers(0, 40, (*values.shape, 3))
            pixels = (100 * values[..., None].clip(max=2) + noise).astype(np.uint8)
            Image.fromarray(pixels).save(root / split / f"{number}.png")
            Image.fromarray(values).save(root / f"{split}_labels" / f"{number}.png")
    (root / "labels.yaml").write_text(yaml.safe_dump({"ignore": 9, "classes": CLASSES}))
    return root


def tree(name: str = "semantic_fpn") -> dict[str, dict[str, Any]]:
    """A recipe on shapes of 48 pixels: 2 epochs of 2 steps of 4 images, with every random choice it can have."""
    return {
        "segmenter": {
            "name": name,
            "backbone": "laplacianformer_nano",
            "backbone_args": {**BACKBONE, "drop_path_rate": 0.1},
            "args": dict(ARGS[name]),
        },
        "data": {
            "reader": "shapes",
            "shapes_train": 8,
            "shapes_val": 3,
            "shapes_size": 48,
            "crop": [40, 48],
            "workers": 0,
        },
        "optimise": {"epochs": 2, "batch_size": 4, "lr": 1e-3, "warmup_epochs": 0.5, "ema_decay": 0.9},
        "run": {"accelerator": "cpu", "devices": 1, "log_steps": 1, "checkpoint_steps": 1, "tensorboard": False},
    }


def recipe(path: Path, name: str = "semantic_fpn", overrides: Sequence[str] = (), **sections: dict[str, Any]) -> Any:
    stated = tree(name)
    for section, keys in sections.items():
        stated.setdefault(section, {}).update(keys)
    path.write_text(yaml.safe_dump(stated))
    return load_recipe(str(path), overrides)


def on_files(path: Path, root: Path, **sections: dict[str, Any]) -> Any:
    data = {"reader": "folders", "root": str(root), **sections.pop("data", {})}
    return recipe(path, data=data, **sections)
