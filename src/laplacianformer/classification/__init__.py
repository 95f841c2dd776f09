"""Image classification: recipe, batches, task, inference, evaluation, pictures.

from laplacianformer import classification

recipe = classification.load_recipe("digits", ["optimise.epochs=2"])
result = classification.train(recipe, Path("runs/digits"))
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laplacianformer.classification.recipe import Recipe, load_recipe
    from laplacianformer.classification.task import Result, train

__all__ = ["Recipe", "Result", "load_recipe", "train"]


def __getattr__(name: str) -> object:
    """Import what needs Lightning and pydantic on first use: `pip install 'laplacianformer[train]'`."""
    if name in ("Recipe", "load_recipe"):
        from laplacianformer.classification import recipe

        return getattr(recipe, name)
    if name in ("Result", "train"):
        from laplacianformer.classification import task

        return getattr(task, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
