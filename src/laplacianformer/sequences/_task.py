"""Train an encoder of sequences from a recipe."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from laplacianformer._util import limits
from laplacianformer._util.errors import InputError
from laplacianformer.data import NO_LABEL, mix, seed_all
from laplacianformer.data._labels import Renumbered, numbers_among
from laplacianformer.data._order import Order
from laplacianformer.data._sources import Once, in_this_process
from laplacianformer.sequences._batches import (
    Cached,
    SequenceBatch,
    SequenceLoaders,
    held_out_batches,
    training_batches,
)
from laplacianformer.sequences._encoder import SequenceEncoder
from laplacianformer.sequences._recipe import SequenceRecipe
from laplacianformer.sequences._sources import VOCABULARY, form_of, open_sequences
from laplacianformer.sequences._weights import encoder_metadata, start_from
from laplacianformer.training._accuracy import AccuracyTask
from laplacianformer.training._loop import train_task
from laplacianformer.training._origin import origin
from laplacianformer.training._report import Report
from laplacianformer.training._session import Session

COLUMNS = (
    *("step", "epoch", "loss", "accuracy"),  # of the training batches
    *("lr", "gradient_norm"),
    "images_per_second",  # sequences, or pairs of them: the columns have the same names in every task
    *("data_wait", "kernel_mean", "residual", "query_dependence", "contribution"),
    *("validation_loss", "validation_accuracy"),  # on held-out sequences; empty except after an evaluation
)


@dataclass(frozen=True)
class Result:
    """The end of a run. Accuracies are fractions of the held-out sequences."""

    folder: Path
    weights: Path  # model.safetensors
    accuracy: float
    best_accuracy: float
    steps: int
    seconds: float  # of this process, without what was done before a resume


def train(recipe: SequenceRecipe, output: Path, *, resume: bool = False, report: Report | None = None) -> Result:
    """Train as the recipe says, into the folder `output`: metrics.csv, checkpoint.pt and, at the end,
    model.safetensors (the averaged weights where the recipe keeps an average).

    Args:
        resume: continue from the checkpoint in the folder, if there is one.
        report: is told how the run goes; without it nothing is printed.
    """
    opened = partial(open_loaders, recipe)
    task, done = train_task(recipe, output, opened, SequenceTask, resume=resume, report=report)
    return Result(output, done.weights, task.accuracy, task.best, done.steps, done.seconds)


def open_loaders(
    recipe: SequenceRecipe, rank: int = 0, world: int = 1, once: Once = in_this_process
) -> SequenceLoaders:
    """The batches of process `rank` of `world`. `once` lets one process list the files for all."""
    data, size = recipe.data, recipe.optimise.batch_size
    training = open_sequences(data.wanted(data.train_split, data.train_samples), once)
    held_out = open_sequences(data.wanted(data.val_split, data.val_samples), once)
    what = f"{data.root or data.task} ({data.val_split})"
    numbers = numbers_among(held_out.classes, training.classes, what, "training doesn't")
    counts: dict[str, int | None] = {"training": len(training), "held-out": len(held_out)}
    if data.cache:
        training, held_out = Cached(training), Cached(held_out)
    order = Order(len(training), size, recipe.run.seed, rank=rank, world=world)
    form = form_of(data.task)
    batches = held_out_batches(held_out, size // world, data.workers, rank, world, form)
    train_batches = training_batches(training, order, data.workers, form)
    renumbered: Any = Renumbered(batches, numbers)
    return SequenceLoaders(train_batches, renumbered, training.classes, counts)


def create_encoder(recipe: SequenceRecipe, classes: tuple[str, ...]) -> SequenceEncoder:
    """The encoder, with the weights that training starts from."""
    encoder, data = recipe.encoder, recipe.data
    options = {key: value for key, value in vars(encoder).items() if not key.startswith("_") and key != "weights"}
    try:
        model = SequenceEncoder(VOCABULARY[data.task], data.length, len(classes), **vars(form_of(data.task)), **options)
    except Exception as error:  # whatever arguments that nobody expected make the parts of an encoder raise
        given = limits.one_line(encoder.attention)
        raise InputError(f"can't create the encoder with encoder.attention={given}: {limits.reason(error)}") from None
    if encoder.weights is not None:
        start_from(model, Path(encoder.weights), data.task, classes)
    return model


class SequenceTask(AccuracyTask):
    """Cross-entropy, and accuracy on the held-out sequences."""

    what = "sequences"
    columns = COLUMNS
    numbers = ("accuracy",)
    lr_steps = ()

    def __init__(self, recipe: SequenceRecipe, loaders: SequenceLoaders, session: Session) -> None:
        self.recipe, self.loaders, self.fabric = recipe, loaders, session.fabric
        self.title, self.batches = f"{recipe.data.task}, {recipe.encoder.attention}", loaders.train
        self.classes, self.images = loaders.classes, loaders.counts
        seed_all(mix(recipe.run.seed, 4))
        self.model = create_encoder(recipe, loaders.classes)
        # What the weights file will say, or the error of writing it, before the run and not after it.
        self.metadata = encoder_metadata(
            session.weights, self.model, recipe.data.task, loaders.classes, origin(recipe, {})
        )

    def parameters(self) -> nn.Module:
        return self.model

    def prepare(self, batch: SequenceBatch) -> tuple[tuple[Any, ...], Any]:
        tokens, mask, targets = self.fabric.to_device((batch.tokens, batch.mask, batch.targets))
        return (tokens, mask), targets

    plain = prepare

    def loss(self, output: Tensor, targets: Tensor) -> tuple[Tensor, list[Tensor]]:
        asked = (targets != NO_LABEL).sum().clamp(min=1)  # where each token has a label, not all of them count
        right = (output.argmax(1) == targets).sum() / asked.double()
        return F.cross_entropy(output, targets, ignore_index=NO_LABEL, reduction="sum") / asked, [right]

    def evaluation_due(self, epoch: int) -> bool:
        return self.recipe.run.evaluation_due(epoch, self.recipe.optimise.epochs)

    def attention_input(self, batch: SequenceBatch) -> tuple[nn.Module, Tensor]:
        """The first sequence (or pair) without its padding; of a pair, the first part of each that both have."""
        tokens = batch.tokens[:1]
        if batch.mask is not None:
            tokens = tokens[..., : int(batch.mask[:1].sum(-1).min())]
        return self.model.eval(), self.fabric.to_device(tokens)
