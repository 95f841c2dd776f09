"""Object detection and instance segmentation: torchvision's detectors on any backbone of timm.

from laplacianformer import detection

model = detection.mask_rcnn("laplacianformer_tiny", num_classes=80)
result = detection.train(detection.load_recipe("shapes-maskrcnn"), Path("runs/shapes"))
"""

from typing import TYPE_CHECKING

from laplacianformer._util.lazy import lazy_exports
from laplacianformer.detection.builders import mask_rcnn, parameter_groups, retinanet
from laplacianformer.detection.find import find_objects
from laplacianformer.detection.inference import Detection, Object, detect
from laplacianformer.detection.weights import DetectorWeights, load_detector, save_detector

if TYPE_CHECKING:
    from laplacianformer.detection.evaluation import DetectionEvaluation, evaluate, open_data
    from laplacianformer.detection.recipe import DetectionRecipe, load_recipe
    from laplacianformer.detection.task import Result, train

__all__ = [
    "Detection",
    "DetectionEvaluation",
    "DetectionRecipe",
    "DetectorWeights",
    "Object",
    "Result",
    "detect",
    "evaluate",
    "find_objects",
    "load_detector",
    "load_recipe",
    "mask_rcnn",
    "open_data",
    "parameter_groups",
    "retinanet",
    "save_detector",
    "train",
]

# What needs Lightning and pydantic is imported on first use: pip install 'laplacianformer[train]'.
__getattr__ = lazy_exports(
    __name__,
    {
        "evaluation": ["DetectionEvaluation", "evaluate", "open_data"],
        "recipe": ["DetectionRecipe", "load_recipe"],
        "task": ["Result", "train"],
    },
)
