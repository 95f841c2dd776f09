"""Semantic segmentation: Semantic FPN and UPerNet on any backbone of timm.

from laplacianformer import segmentation

model = segmentation.semantic_fpn("laplacianformer_tiny", num_classes=150)
result = segmentation.train(segmentation.load_recipe("shapes-segmentation"), Path("runs/shapes"))
"""

from typing import TYPE_CHECKING

from laplacianformer._util.lazy import lazy_exports
from laplacianformer.segmentation._builders import Segmenter, parameter_groups, semantic_fpn, upernet
from laplacianformer.segmentation._classes import Preparation, find_classes
from laplacianformer.segmentation._inference import Segmentation, segment
from laplacianformer.segmentation._labels import IGNORED, Labels, labels_of, read_labels
from laplacianformer.segmentation._pictures import overlay, save_label_map, with_legend
from laplacianformer.segmentation._weights import SegmenterWeights, load_segmenter, save_segmenter

if TYPE_CHECKING:
    from laplacianformer.segmentation._evaluation import SegmentationEvaluation, draw_examples, evaluate, open_data
    from laplacianformer.segmentation._images import LabelledImages
    from laplacianformer.segmentation._recipe import (
        SegmentationAugment,
        SegmentationData,
        SegmentationOptimise,
        SegmentationRecipe,
        SegmenterSection,
        load_recipe,
    )
    from laplacianformer.segmentation._scores import Scores
    from laplacianformer.segmentation._task import Result, SegmentationTask, pixel_loss, train

__all__ = [
    "IGNORED",
    "LabelledImages",
    "Labels",
    "Preparation",
    "Result",
    "Scores",
    "Segmentation",
    "SegmentationAugment",
    "SegmentationData",
    "SegmentationEvaluation",
    "SegmentationOptimise",
    "SegmentationRecipe",
    "SegmentationTask",
    "Segmenter",
    "SegmenterSection",
    "SegmenterWeights",
    "draw_examples",
    "evaluate",
    "find_classes",
    "labels_of",
    "load_recipe",
    "load_segmenter",
    "open_data",
    "overlay",
    "parameter_groups",
    "pixel_loss",
    "read_labels",
    "save_label_map",
    "save_segmenter",
    "segment",
    "semantic_fpn",
    "train",
    "upernet",
    "with_legend",
]

# What needs Lightning, pydantic and torchmetrics is imported on first use: pip install 'laplacianformer[train]'.
__getattr__ = lazy_exports(
    __name__,
    {
        "_evaluation": ["SegmentationEvaluation", "draw_examples", "evaluate", "open_data"],
        "_images": ["LabelledImages"],
        "_recipe": [
            "SegmentationAugment",
            "SegmentationData",
            "SegmentationOptimise",
            "SegmentationRecipe",
            "SegmenterSection",
            "load_recipe",
        ],
        "_scores": ["Scores"],
        "_task": ["Result", "SegmentationTask", "pixel_loss", "train"],
    },
)
