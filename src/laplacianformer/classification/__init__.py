"""Image classification: recipe, batches, task, inference, evaluation, pictures.

from laplacianformer import classification

recipe = classification.load_recipe("digits", ["optimise.epochs=2"])
result = classification.train(recipe, Path("runs/digits"))
"""

from typing import TYPE_CHECKING

from laplacianformer._util.lazy import lazy_exports
from laplacianformer.classification.evaluation import Evaluation, evaluate, open_batches
from laplacianformer.classification.inference import Prediction, predict
from laplacianformer.classification.pictures import draw_confusion, draw_predictions

if TYPE_CHECKING:
    from laplacianformer.classification.recipe import Recipe, load_recipe
    from laplacianformer.classification.task import Result, train

__all__ = [
    "Evaluation",
    "Prediction",
    "Recipe",
    "Result",
    "draw_confusion",
    "draw_predictions",
    "evaluate",
    "load_recipe",
    "open_batches",
    "predict",
    "train",
]

# What needs Lightning and pydantic is imported on first use: pip install 'laplacianformer[train]'.
__getattr__ = lazy_exports(
    __name__,
    {
        "recipe": ["Recipe", "load_recipe"],
        "task": ["Result", "train"],
    },
)
