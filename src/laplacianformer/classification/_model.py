"""What a recipe asks for: the model, and the mixing of images and labels."""

import timm
from timm.data import Mixup
from torch import nn

from laplacianformer._util import limits
from laplacianformer._util.errors import InputError
from laplacianformer.classification._recipe import Recipe


def create_model(recipe: Recipe, num_classes: int) -> nn.Module:
    """The model, with the weights that training starts from."""
    name = recipe.model.name
    try:
        model: nn.Module = timm.create_model(name, num_classes=num_classes, **recipe.model.args)
    except Exception as error:  # whatever arguments that nobody expected make the parts of a model raise
        known = timm.list_models("laplacianformer_*")
        hint = "" if timm.is_model(name) else f"; known are timm's models and {', '.join(known)}"
        raise InputError(f"can't create model.name={limits.one_line(name)}: {limits.reason(error)}{hint}") from None
    return model


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
