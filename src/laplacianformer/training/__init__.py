"""Training, whatever the task: the loop, recipes, checkpoints, metrics, optimisers, many processes.

A task is an object with the attributes and methods of `Task`; `Loop(task, start(recipe.run, folder)).run()` trains it.
"""

from typing import TYPE_CHECKING

from laplacianformer._util.lazy import lazy_exports
from laplacianformer.training.report import Report, Silent, Table

if TYPE_CHECKING:
    from laplacianformer.training._recipe import AnyRecipe, Run
    from laplacianformer.training.loop import Finished, Loop
    from laplacianformer.training.session import Session, start
    from laplacianformer.training.task import Task

__all__ = [
    "AnyRecipe",
    "Finished",
    "Loop",
    "Report",
    "Run",
    "Session",
    "Silent",
    "Table",
    "Task",
    "start",
]

# What needs Lightning and pydantic is imported on first use: pip install 'laplacianformer[train]'.
__getattr__ = lazy_exports(
    __name__,
    {
        "_recipe": ["AnyRecipe", "Run"],
        "loop": ["Finished", "Loop"],
        "session": ["Session", "start"],
        "task": ["Task"],
    },
)
