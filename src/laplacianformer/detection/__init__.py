"""Object detection and instance segmentation: torchvision's detectors on any backbone of timm.

from laplacianformer import detection

model = detection.mask_rcnn("laplacianformer_tiny", num_classes=80)
result = detection.train(detection.load_recipe("shapes-maskrcnn"), Path("runs/shapes"))
"""

from typing import TYPE_CHECKING

from laplacianformer._util.lazy import lazy_exports
from laplacianformer.detection._builders import mask_rcnn, parameter_groups, retinanet
from laplacianformer.detection._find import find_objects
from laplacianformer.detection._inference import Detection, Object, detect
from laplacianformer.detection._weights import DetectorWeights, load_detector, save_detector

if TYPE_CHECKING:
    from laplacianformer.detection._evaluation import DetectionEvaluation, draw_examples, evaluate, open_data
    from laplacianformer.detection._recipe import (
        DetectionAugment,
        DetectionData,
        DetectionOptimise,
        DetectionRecipe,
        Detector,
        load_recipe,
    )
    from laplacianformer.detection._task import DetectionTask, Result, train

__all__ = [
    "Detection",
    "DetectionAugment",
    "DetectionData",
    "DetectionEvaluation",
    "DetectionOptimise",
    "DetectionRecipe",
    "DetectionTask",
    "Detector",
    "DetectorWeights",
    "Object",
    "Result",
    "detect",
    "draw_examples",
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
        "_evaluation": ["DetectionEvaluation", "draw_examples", "evaluate", "open_data"],
        "_recipe": [
            "DetectionAugment",
            "DetectionData",
            "DetectionOptimise",
            "DetectionRecipe",
            "Detector",
            "load_recipe",
        ],
        "_task": ["DetectionTask", "Result", "train"],
    },
)
