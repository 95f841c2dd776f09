"""From the words of the command line to a run."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from laplacianformer._util.errors import InputError
from laplacianformer.data.sources import parse


def train(
    recipe: str, data: str | None, output: Path | None, overrides: Sequence[str] = (), *, resume: bool = False
) -> None:
    """Train what the recipe describes, and show how it goes."""
    from laplacianformer.commands.progress import ProgressReport

    try:
        from laplacianformer.training import recipes

        tasks = _tasks()
    except ImportError as error:
        raise InputError(f"training needs {error.name}: pip install 'laplacianformer[train]'") from None
    kinds = {section: kind for section, (kind, _) in tasks.items()}
    loaded = recipes.load(recipe, kinds, [*data_overrides(data), *overrides])
    train_task = next(train_task for kind, train_task in tasks.values() if isinstance(loaded, kind))
    folder = output or Path("runs") / Path(recipe).stem
    train_task(loaded, folder, resume=resume, report=ProgressReport())


def _tasks() -> dict[str, tuple[type[Any], Callable[..., Any]]]:
    """Every task by the section that only its recipes have: the type of its recipes, and what trains one."""
    from laplacianformer import classification, detection

    return {
        "model": (classification.Recipe, classification.train),
        "detector": (detection.DetectionRecipe, detection.train),
    }


def data_overrides(data: str | None) -> list[str]:
    """`--data [READER:]DIR` as overrides of a recipe."""
    reader, root = parse(data) if data is not None else (None, None)
    said = {"data.reader": reader, "data.root": root}
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in said.items() if value is not None]
