"""What a task is to the loop: a model, batches, a loss, an evaluation. Each task of the package is one."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from laplacianformer.training._recipe import AnyRecipe
from laplacianformer.training._report import Table


class AnyBatch(Protocol):
    """What the loop reads from a batch."""

    @property
    def targets(self) -> Any:
        """As many as there are images in the batch."""

    @property
    def corrupt(self) -> tuple[str, ...]:
        """One line for each image that could not be read."""


class Batches(Protocol):
    """The training batches of one process."""

    def __len__(self) -> int:
        """The number of batches in an epoch."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The batches of an epoch from index `start` on."""


class Task(Protocol):
    """What is trained and what counts; complete when it is constructed. The loop owns everything else: steps, rows,
    checkpoints, the optimiser and the average of the weights.

    The scores of the last evaluation are state of the task: `state` and `restore` put them into a checkpoint.
    """

    @property
    def title(self) -> str:
        """The title of the progress bar and of the table at the end."""

    @property
    def recipe(self) -> AnyRecipe: ...

    @property
    def model(self) -> nn.Module:
        """The model, built once, with the weights that the run starts from."""

    @property
    def batches(self) -> Batches: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def images(self) -> Mapping[str, int | None]:
        """The number of images per split; None: a stream that doesn't say."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of metrics.csv."""

    @property
    def numbers(self) -> tuple[str, ...]:
        """Columns for what `loss` returns beside the loss."""

    @property
    def lr_steps(self) -> Sequence[float]:
        """Epochs after which the learning rate drops to a tenth; empty: a cosine."""

    def parameters(self) -> Any:
        """What the optimiser gets: the model, or groups of its parameters. Called when the model is on its device."""

    def prepare(self, batch: Any) -> tuple[tuple[Any, ...], Any]:
        """The arguments of the model, and what the loss needs beside the output; on the device."""

    def loss(self, output: Any, targets: Any) -> tuple[Tensor, list[Tensor]]:
        """The loss of a training batch, and the values of `numbers`."""

    def evaluation_due(self, epoch: int) -> bool:
        """Whether to evaluate after this many epochs."""

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Scores of these weights on the held-out images, over all processes, by column."""

    def attention_input(self, batch: Any) -> tuple[nn.Module, Tensor]:
        """The part of the model that holds the attention, and its input for a few images of a batch."""

    def line(self, row: Mapping[str, Any]) -> str:
        """A row with scores, for people."""

    def summary(self) -> list[tuple[str, str]]:
        """The scores of the run, for people."""

    def tables(self) -> list[Table]:
        """More than the summary, for people."""

    def save(self, path: Path, tensors: Mapping[str, Tensor], *, steps: int, ema_decay: float | None) -> None:
        """Write these weights and what they are to one file. `ema_decay`: of their average, if they are one."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the scores."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the scores from a checkpoint."""
