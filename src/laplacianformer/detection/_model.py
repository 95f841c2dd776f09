"""What a recipe asks for: the detector, and the groups of its parameters."""

from typing import Any

from torch import nn

from laplacianformer._util import limits
from laplacianformer._util.errors import InputError
from laplacianformer.detection._builders import BUILDERS, parameter_groups
from laplacianformer.detection._recipe import DetectionOptimise, DetectionRecipe
from laplacianformer.training._backbone_start import backbone_start


def create_detector(recipe: DetectionRecipe, num_classes: int) -> nn.Module:
    """The detector, with the weights that training starts from."""
    detector, data = recipe.detector, recipe.data
    build = BUILDERS[detector.name]
    backbone, weights, arguments = backbone_start(
        "detector", detector.backbone, detector.weights, detector.backbone_args
    )
    try:
        model: nn.Module = build(
            backbone,
            num_classes,
            weights,
            backbone_args=arguments,
            frozen_stages=detector.frozen_stages,
            frozen_statistics=detector.frozen_statistics,
            short_side=data.short_side,
            long_side=data.long_side,
            mean=data.mean,
            std=data.std,
            **detector.args,
        )
    except InputError:
        raise
    except Exception as error:  # whatever arguments that nobody expected make the parts of a detector raise
        what = f"{detector.name} on {limits.one_line(detector.backbone)}"
        raise InputError(f"can't create the detector {what}: {limits.reason(error)}") from None
    return model


def create_parameter_groups(model: Any, optimise: DetectionOptimise) -> list[dict[str, Any]]:
    """The parameters for the optimiser, with the weight decay and layer decay of the recipe."""
    try:
        return parameter_groups(model, optimise.weight_decay, optimise.layer_decay)
    except ValueError as error:
        raise InputError(f"optimise.{error}") from None
