"""What a recipe asks for: the model, with the weights that it starts from, and the mixing of images and labels."""

from collections.abc import Sequence
from typing import Any

import timm
import torch
from timm.data import Mixup
from torch import nn

from laplacianformer._util import limits
from laplacianformer._util.errors import InputError
from laplacianformer.classification._recipe import Recipe
from laplacianformer.training._frozen import freeze_stages, freeze_statistics
from laplacianformer.weights import load_weights
from laplacianformer.weights._start import read_start, start_file


def create_model(recipe: Recipe, classes: Sequence[str]) -> tuple[nn.Module, dict[str, Any]]:
    """The model, with the weights that training starts from, and the arguments that describe it (timm.create_model)."""
    chosen = recipe.model
    args = chosen.args
    if chosen.weights is None:
        model = _random(recipe, len(classes))
    else:
        model = _trained(recipe, classes)
        args = {**args, **_fit_to_size(model, recipe)}
    try:
        freeze_stages(model, _stages(model), chosen.frozen_stages, chosen.name)
    except ValueError as error:
        raise InputError(f"model.{error}") from None
    if chosen.frozen_statistics:
        freeze_statistics(model)
    return model, args


def _random(recipe: Recipe, num_classes: int) -> nn.Module:
    name = recipe.model.name
    try:
        model: nn.Module = timm.create_model(name, num_classes=num_classes, **recipe.model.args)
    except Exception as error:  # whatever arguments that nobody expected make the parts of a model raise
        known = timm.list_models("laplacianformer_*")
        hint = "" if timm.is_model(name) else f"; known are timm's models and {', '.join(known)}"
        raise InputError(f"can't create model.name={limits.one_line(name)}: {limits.reason(error)}{hint}") from None
    return model


def _trained(recipe: Recipe, classes: Sequence[str]) -> Any:
    """The model of the weights, with a new head where the classes are others."""
    weights, args = str(recipe.model.weights), recipe.model.args
    path = start_file(weights)
    if path is None:
        return _downloaded(weights, len(classes), args)
    try:
        loaded = load_weights(path, model_args=args)
    except InputError:
        raise
    except Exception as error:  # whatever arguments that nobody expected make the parts of a model raise
        raise InputError(
            f"the model of {path} can't be built with model.args={limits.shown(args)}: {limits.reason(error)}"
        ) from None
    model: Any = loaded.model
    if tuple(classes) != loaded.classes:
        model.reset_classifier(len(classes))
    return model


def _downloaded(name: str, num_classes: int, args: dict[str, Any]) -> Any:
    """A model of timm with its weights. Its outputs have no names: it keeps its head if there are as many classes."""
    try:
        return timm.create_model(name, pretrained=True, num_classes=num_classes, **args)
    except Exception as error:  # of the network, or of arguments that nobody expected
        raise InputError(
            f"can't get {name} with its weights from timm's hub: {limits.reason(error)}; without a connection, give a "
            "weights file"
        ) from None


def _fit_to_size(model: Any, recipe: Recipe) -> dict[str, Any]:
    """Let the model take images of the recipe's size. Returns the arguments that this changes."""
    size, changed = recipe.data.size, {}
    before = read_start(str(recipe.model.weights)).input["size"]
    if before[1:] == (size, size):
        return {}
    try:
        if hasattr(model, "set_input_size"):  # timm's models with a parameter for each position
            model.set_input_size(img_size=(size, size))
            changed = {"img_size": size}
        with torch.no_grad():
            model.eval()(torch.zeros(1, 3, size, size))
    except Exception as error:  # timm's models assert, and fail in many other ways
        raise InputError(
            f"the {recipe.model.name} of {recipe.model.weights} is for images of {before[1]} x {before[2]} pixels and "
            f"can't take those of data.size={size}: {limits.reason(error)}"
        ) from None
    return changed


def _stages(model: Any) -> list[str]:
    """The names of the modules that make the feature maps, from the first."""
    return [info["module"] for info in getattr(model, "feature_info", [])]


def create_mixup(recipe: Recipe, num_classes: int, world: int) -> Mixup | None:
    """Mixup and CutMix, if the recipe has them, in each of `world` processes."""
    augment, batch_size = recipe.augment, recipe.optimise.batch_size
    if not (augment.mixup or augment.cutmix):
        return None
    if batch_size // world % 2:
        raise InputError(
            f"mixup needs an even batch size per process: optimise.batch_size={batch_size} gives {batch_size // world}"
        )
    return Mixup(augment.mixup, augment.cutmix, label_smoothing=augment.label_smoothing, num_classes=num_classes)
