"""A detector of two small stages, and COCO data sets written from generated shapes: seconds on one core."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from PIL import Image
from torch import Tensor

from laplacianformer.detection import _shapes as shapes
from laplacianformer.detection import load_recipe, mask_rcnn, retinanet
from laplacianformer.detection._coco import open_coco
from laplacianformer.detection._recipe import DetectionData

BACKBONE = {
    "depths": [1, 1],
    "embed_dims": [32, 32],
    "num_heads": [1, 1],
    "mlp_ratios": [2, 2],
    "stem_stride": 4,
    "attention_args": {"grid": 3},
    "out_indices": [0, 1],
}
COMMON = {"channels": 32, "norm": True, "short_side": 64, "long_side": 64}
SMALL: dict[str, dict[str, Any]] = {
    "mask_rcnn": {
        "anchor_scale": 4,
        "head_width": 64,
        "mask_layers": [32],
        "rpn_pre_nms_top_n_train": 100,
        "rpn_post_nms_top_n_train": 50,
        "rpn_pre_nms_top_n_test": 50,
        "rpn_post_nms_top_n_test": 30,
        "box_batch_size_per_image": 32,
        "rpn_batch_size_per_image": 64,
        "box_detections_per_img": 10,
    },
    "retinanet": {"anchor_scale": 3, "finest_stride": 4, "detections_per_img": 10, "topk_candidates": 50},
}
BUILDERS: dict[str, Callable[..., Any]] = {"mask_rcnn": mask_rcnn, "retinanet": retinanet}
Batch = tuple[list[Tensor], list[dict[str, Tensor]]]


def small(detector: str, num_classes: int = 3, **arguments: Any) -> Any:
    torch.manual_seed(0)
    options = {"backbone_args": BACKBONE, **COMMON, **SMALL[detector], **arguments}
    return BUILDERS[detector]("laplacianformer_nano", num_classes, **options)


def batch() -> Batch:
    """Two images of different shapes, one of them without objects."""
    generator = torch.Generator().manual_seed(0)
    images = [torch.rand(3, 64, 48, generator=generator), torch.rand(3, 40, 64, generator=generator)]
    masks = torch.zeros(2, 64, 48, dtype=torch.uint8)
    masks[0, 8:24, 8:32] = masks[1, 40:60, 10:40] = 1
    boxes = torch.tensor([[8.0, 8, 32, 24], [10, 40, 40, 60]])
    nothing = {
        "boxes": torch.zeros(0, 4),
        "labels": torch.zeros(0, dtype=torch.long),
        "masks": torch.zeros(0, 40, 64, dtype=torch.uint8),
    }
    return images, [{"boxes": boxes, "labels": torch.tensor([1, 3]), "masks": masks}, nothing]


def coco_folder(root: Path, train: int = 8, val: int = 4, size: int = 48) -> Path:
    """root/instances_{train,val}.json and root/{train,val}/*.png."""
    for split, count in (("train", train), ("val", val)):
        tree, images = shapes.generate(split, count, size)  # type: ignore[arg-type]
        (root / split).mkdir(parents=True)
        for name, pixels in images.items():
            Image.fromarray(pixels).save(root / split / name)
        (root / f"instances_{split}.json").write_text(json.dumps(tree))
    return root


def change(root: Path, split: str, edit: Callable[[dict[str, Any]], None]) -> None:
    """Edit the annotations of a split."""
    path = root / f"instances_{split}.json"
    tree = json.loads(path.read_text())
    edit(tree)
    path.write_text(json.dumps(tree))


def recipe(path: Path, detector: str = "mask_rcnn", **sections: dict[str, Any]) -> Any:
    """A recipe on shapes of 48 pixels: 2 epochs of 2 steps of 4 images, with every random choice it can have."""
    tree: dict[str, dict[str, Any]] = {
        "detector": {
            "name": detector,
            "backbone": "laplacianformer_nano",
            "backbone_args": {**BACKBONE, "drop_path_rate": 0.1},
            "args": {"channels": 32, "norm": True, **SMALL[detector]},
        },
        "data": {
            "reader": "shapes",
            "shapes_train": 8,
            "shapes_val": 4,
            "shapes_size": 48,
            "short_side": [40, 48],
            "long_side": 64,
            "workers": 0,
        },
        "augment": {"colour": 0.5, "zoom_out": 0.3, "crop": 0.5, "flip": 0.5},
        "optimise": {"epochs": 2, "batch_size": 4, "lr": 1e-3, "warmup_epochs": 0.5, "ema_decay": 0.9},
        "run": {"accelerator": "cpu", "devices": 1, "log_steps": 1, "checkpoint_steps": 1, "tensorboard": False},
    }
    for name, keys in sections.items():
        tree[name] |= keys
    path.write_text(yaml.safe_dump(tree))
    return load_recipe(str(path))


def open_folder(folder: Path, *, masks: bool = True, **keys: Any) -> Any:
    return open_coco(DetectionData(root=str(folder), **keys), "train", masks=masks)
