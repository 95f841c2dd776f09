"""Training, whatever the task: the loop, recipes, checkpoints, metrics, optimisers, many processes.

A task is an object with the attributes and methods of `Task`; `Loop(task, start(recipe.run, folder)).run()` trains it.
"""

from typing import TYPE_CHECKING

from laplacianformer.training.report import Report, Silent, Table

if TYPE_CHECKING:
    from laplacianformer.training.loop import Finished, Loop
    from laplacianformer.training.session import Session, start
    from laplacianformer.training.task import Task

__all__ = ["Finished", "Loop", "Report", "Session", "Silent", "Table", "Task", "start"]


def __getattr__(name: str) -> object:
    """Import what needs Lightning and pydantic on first use: `pip install 'laplacianformer[train]'`."""
    if name in ("Finished", "Loop"):
        from laplacianformer.training import loop

        return getattr(loop, name)
    if name in ("Session", "start"):
        from laplacianformer.training import session

        return getattr(session, name)
    if name == "Task":
        from laplacianformer.training.task import Task

        return Task
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
