"""Where trained weights come from, for the metadata of their file."""

import json
import time
from collections.abc import Mapping
from typing import Any

import laplacianformer
from laplacianformer._util.provenance import commit
from laplacianformer.training._recipe import AnyRecipe
from laplacianformer.training._recipes import as_yaml


def origin(recipe: AnyRecipe, scores: Mapping[str, Any]) -> dict[str, str]:
    """Recipe, scores, kind of weights, commit, date and version; nothing about the machine."""
    return {
        "recipe": as_yaml(recipe, with_paths=False),
        "metrics": json.dumps(scores),
        "weights": "exponential moving average" if recipe.optimise.ema_decay else "last step",
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "version": laplacianformer.__version__,
    }
