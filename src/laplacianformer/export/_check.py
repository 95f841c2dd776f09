"""Whether a model is worth exporting, and how far an export is from it: on random images of several sizes, and in
accuracy on labelled ones."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from laplacianformer.classification._evaluation import evaluate, open_batches
from laplacianformer.export._trace import exportable, least_side, only_size
from laplacianformer.inspect._finite import check_outputs
from laplacianformer.weights import Weights

Runner = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Difference:
    """On random images of one shape: the largest difference of an output over the largest output."""

    shape: tuple[int, ...]
    relative: float


@torch.inference_mode()
def check_finite(path: Path, model: nn.Module, *shape: int) -> None:
    """Refuse a model whose outputs for a random image of this shape (channels, height, width) are not finite."""
    image = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))
    check_outputs(path, model(image), model, image)


@torch.inference_mode()
def differences(loaded: Weights, run: Runner, size: tuple[int, int] | None = None) -> Iterator[Difference]:
    """How far what `run` computes is from the model, for random images of several shapes.

    size: the only height and width that `run` takes; then only the batches differ.
    """
    channels, height, width = loaded.input["size"]
    model, size = exportable(loaded.model), only_size(loaded, size)
    generator, least = torch.Generator().manual_seed(0), 1 if size else least_side(model)
    for batch, rows, columns in ((1, height, width), (3, height + 9, width // 2 + 1), (2, 7 * height // 4, width)):
        rows, columns = size or (max(rows, least), max(columns, least))
        images = torch.randn(batch, channels, rows, columns, generator=generator)
        expected = loaded.model(images)
        yield Difference(tuple(images.shape), relative_difference(run(images), expected))


def relative_difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference over the largest output."""
    return float((found - expected).abs().max() / expected.abs().max())


@dataclass(frozen=True)
class AccuracyChange:
    """Top-1 as a fraction, of the model and of the export, on the same images."""

    images: int
    model: float
    export: float


def compare_accuracy(loaded: Weights, run: Runner, data: str, *, allow_pipes: bool = False) -> AccuracyChange:
    """Top-1 on the labelled images `[READER:]DIR`, as `laplacianformer eval` measures it."""
    twin = replace(loaded, model=_Module(run))
    before, after = (evaluate(each, open_batches(loaded, data, allow_pipes=allow_pipes)) for each in (loaded, twin))
    return AccuracyChange(before.images, before.top1, after.top1)


class _Module(nn.Module):
    def __init__(self, run: Runner) -> None:
        super().__init__()
        self.run = run

    def forward(self, images: Tensor) -> Tensor:
        return self.run(images)
