"""Image classification: recipe, batches, task, inference, evaluation, pictures.

from laplacianformer import classification

recipe = classification.load_recipe("digits", ["optimise.epochs=2"])
result = classification.train(recipe, Path("runs/digits"))
"""

from typing import TYPE_CHECKING

from laplacianformer._util.lazy import lazy_exports
from laplacianformer.classification._evaluation import Evaluation, evaluate, open_batches
from laplacianformer.classification._inference import Prediction, attention_rows, predict
from laplacianformer.classification._pictures import draw_confusion, draw_predictions

if TYPE_CHECKING:
    from laplacianformer.classification._recipe import Augment, Data, Model, Recipe, load_recipe
    from laplacianformer.classification._task import ClassificationTask, Result, train

__all__ = [
    "Augment",
    "ClassificationTask",
    "Data",
    "Evaluation",
    "Model",
    "Prediction",
    "Recipe",
    "Result",
    "attention_rows",
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
        "_recipe": ["Augment", "Data", "Model", "Recipe", "load_recipe"],
        "_task": ["ClassificationTask", "Result", "train"],
    },
)
