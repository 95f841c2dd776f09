"""From the words of the command line to a run."""

import json
from collections.abc import Sequence
from pathlib import Path

from laplacianformer.errors import InputError


def train(
    recipe: str, data: str | None, output: Path | None, overrides: Sequence[str] = (), *, resume: bool = False
) -> None:
    try:
        from laplacianformer import recipes
        from laplacianformer.tasks import classification, detection
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
    if data is None:
        return []
    reader, colon, root = data.partition(":")
    if not colon or Path(data).exists():
        return [f"data.root={json.dumps(data, ensure_ascii=False)}"]
    return [
        f"data.reader={json.dumps(reader, ensure_ascii=False)}",
        *([f"data.root={json.dumps(root, ensure_ascii=False)}"] if root else []),
    ]
