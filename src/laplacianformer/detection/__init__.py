"""Object detection and instance segmentation: torchvision's detectors on any backbone of timm.

from laplacianformer import detection

model = detection.mask_rcnn("laplacianformer_tiny", num_classes=80)
result = detection.train(detection.load_recipe("shapes-maskrcnn"), Path("runs/shapes"))
"""

from typing import TYPE_CHECKING

from laplacianformer.detection.builders import mask_rcnn, parameter_groups, retinanet
from laplacianformer.detection.weights import DetectorWeights, load_detector, save_detector

if TYPE_CHECKING:
    from laplacianformer.detection.recipe import DetectionRecipe, load_recipe
    from laplacianformer.detection.task import Result, train

__all__ = [
    "DetectionRecipe",
    "DetectorWeights",
    "Result",
    "load_detector",
    "load_recipe",
    "mask_rcnn",
    "parameter_groups",
    "retinanet",
    "save_detector",
    "train",
]


def __getattr__(name: str) -> object:
    """Import what needs Lightning and pydantic on first use: `pip install 'laplacianformer[train]'`."""
    if name in ("DetectionRecipe", "load_recipe"):
        from laplacianformer.detection import recipe

        return getattr(recipe, name)
    if name in ("Result", "train"):
        from laplacianformer.detection import task

        return getattr(task, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
