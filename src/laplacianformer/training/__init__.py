"""Training, whatever the task: the loop, recipes, checkpoints, metrics, optimisers, many processes.

A task is an object with the attributes and methods of `Task`. It is trained in a folder, by one run at a time:

with start(recipe.run, folder) as session:
    Loop(task, session).run()
"""

from typing import TYPE_CHECKING

from laplacianformer._util.lazy import lazy_exports
from laplacianformer.training._report import Report, Silent, Table

if TYPE_CHECKING:
    from laplacianformer.training._loop import Finished, Loop
    from laplacianformer.training._recipe import AnyRecipe, EvaluatedRun, Run
    from laplacianformer.training._session import Session, start
    from laplacianformer.training._task import AnyBatch, Batches, Task

__all__ = [
    "AnyBatch",
    "AnyRecipe",
    "Batches",
    "EvaluatedRun",
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
        "_recipe": ["AnyRecipe", "EvaluatedRun", "Run"],
        "_loop": ["Finished", "Loop"],
        "_session": ["Session", "start"],
        "_task": ["AnyBatch", "Batches", "Task"],
    },
)
