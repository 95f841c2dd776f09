"""The end of a run: weights in one file that says what they are and where they come from."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

import laplacianformer
from laplacianformer._util.provenance import commit
from laplacianformer.detection.coco import CocoImages
from laplacianformer.detection.weights import detector_metadata, save_detector
from laplacianformer.recipes import AnyRecipe, DetectionRecipe, Recipe, as_yaml
from laplacianformer.training.parts import create_detector, create_model
from laplacianformer.weights import FORBIDDEN, checked_metadata, save_weights


def export(
    path: Path, state: Mapping[str, Any], recipe: Recipe, classes: Sequence[str], scores: Mapping[str, Any]
) -> None:
    """Write these weights. Recipe, metrics, commit, date and version go into the metadata."""
    model = create_model(recipe, len(classes))
    model.load_state_dict(state)
    save_weights(path, model, classes=classes, metadata=_metadata(recipe, classes, scores))


def check(path: Path, model: nn.Module, recipe: Recipe, classes: Sequence[str]) -> None:
    """Raise what `export` would raise, before the run and not after it."""
    checked_metadata(path, model, classes, _metadata(recipe, classes, {}))


def _metadata(recipe: Recipe, classes: Sequence[str], scores: Mapping[str, Any]) -> dict[str, str]:
    return {
        "architecture": recipe.model.name,
        "model_args": json.dumps({**_lasting(recipe.model.args), "num_classes": len(classes)}),
        "input": json.dumps(recipe.data.input),
        **_origin(recipe, scores),
    }


def export_detector(
    path: Path, state: Mapping[str, Any], recipe: DetectionRecipe, images: CocoImages, scores: Mapping[str, Any]
) -> None:
    """As `export`, for a detector of the categories of these images."""
    model = create_detector(recipe, len(images.classes), start=False)
    model.load_state_dict(state)
    save_detector(
        path, model, classes=images.classes, category_ids=images.category_ids, metadata=_origin(recipe, scores)
    )


def check_detector(path: Path, model: nn.Module, recipe: DetectionRecipe, images: CocoImages) -> None:
    """Raise what `export_detector` would raise, before the run and not after it."""
    detector_metadata(path, model, images.classes, images.category_ids, _origin(recipe, {}))


def _origin(recipe: AnyRecipe, scores: Mapping[str, Any]) -> dict[str, str]:
    return {
        "recipe": as_yaml(recipe, with_root=False),
        "metrics": json.dumps(scores),
        "weights": "exponential moving average" if recipe.optimise.ema_decay else "last step",
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "version": laplacianformer.__version__,
    }


def _lasting(args: Mapping[str, Any]) -> dict[str, Any]:
    """Without what only said where the first weights came from."""
    return {name: value for name, value in args.items() if name not in FORBIDDEN}
