"""From the words of the command line to a run."""

import json
from collections.abc import Sequence
from pathlib import Path

from laplacianformer._util.errors import InputError
from laplacianformer.data.sources import parse


def train(
    recipe: str, data: str | None, output: Path | None, overrides: Sequence[str] = (), *, resume: bool = False
) -> None:
    try:
        from laplacianformer import recipes
        from laplacianformer.classification import task as classification
        from laplacianformer.detection import task as detection
    except ImportError as error:
        raise InputError(f"training needs {error.name}: pip install 'laplacianformer[train]'") from None
    loaded = recipes.load(recipe, [*data_overrides(data), *overrides])
    folder = output or Path("runs") / Path(recipe).stem
    if isinstance(loaded, recipes.DetectionRecipe):
        detection.train(loaded, folder, resume=resume)
    else:
        classification.train(loaded, folder, resume=resume)


def data_overrides(data: str | None) -> list[str]:
    """`--data [READER:]DIR` as overrides of a recipe."""
    reader, root = parse(data) if data is not None else (None, None)
    said = {"data.reader": reader, "data.root": root}
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in said.items() if value is not None]
