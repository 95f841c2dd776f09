"""From trained softmax attention to Laplacian attention: take the weights over, match the layers, distil the model.

from laplacianformer.convert import convert

converted = convert(timm.create_model("vit_small_patch16_224", pretrained=True), "imagenet/", "runs/converted")
"""

from typing import TYPE_CHECKING

from laplacianformer._util.lazy import lazy_exports

if TYPE_CHECKING:
    from laplacianformer.convert._convert import convert
    from laplacianformer.convert._recipe import Convert, ConvertRecipe, Teacher, load_recipe
    from laplacianformer.convert._run import Result, train

__all__ = ["Convert", "ConvertRecipe", "Result", "Teacher", "convert", "load_recipe", "train"]

# What needs Lightning and pydantic is imported on first use: pip install 'laplacianformer[train]'.
__getattr__ = lazy_exports(
    __name__,
    {
        "_convert": ["convert"],
        "_recipe": ["Convert", "ConvertRecipe", "Teacher", "load_recipe"],
        "_run": ["Result", "train"],
    },
)
