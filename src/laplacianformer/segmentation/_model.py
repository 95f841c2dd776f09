"""What a recipe asks for: the segmenter, and how images are prepared for it."""

from typing import Any

from laplacianformer._util import limits
from laplacianformer._util.errors import InputError
from laplacianformer.segmentation._builders import BUILDERS, Segmenter, parameter_groups
from laplacianformer.segmentation._classes import Preparation
from laplacianformer.segmentation._recipe import SegmentationData, SegmentationOptimise, SegmentationRecipe
from laplacianformer.training._backbone_start import backbone_start


def create_segmenter(recipe: SegmentationRecipe, num_classes: int) -> Segmenter:
    """The segmenter, with the weights that training starts from."""
    section = recipe.segmenter
    backbone, weights, arguments = backbone_start("segmenter", section.backbone, section.weights, section.backbone_args)
    try:
        model: Segmenter = BUILDERS[section.name](
            backbone,
            num_classes,
            weights,
            backbone_args=arguments,
            frozen_stages=section.frozen_stages,
            frozen_statistics=section.frozen_statistics,
            **section.args,
        )
    except InputError:
        raise
    except Exception as error:  # whatever arguments that nobody expected make the parts of a segmenter raise
        what = f"{section.name} on {limits.one_line(section.backbone)}"
        raise InputError(f"can't create the segmenter {what}: {limits.reason(error)}") from None
    return model


def create_parameter_groups(model: Segmenter, optimise: SegmentationOptimise) -> list[dict[str, Any]]:
    """The parameters for the optimiser, with the weight decay and layer decay of the recipe."""
    try:
        return parameter_groups(model, optimise.weight_decay, optimise.layer_decay)
    except ValueError as error:
        raise InputError(f"optimise.{error}") from None


def preparation_for(data: SegmentationData) -> Preparation:
    """How images are prepared in evaluation."""
    return Preparation(data.mean, data.std, data.short_side, data.window, data.window_stride)
