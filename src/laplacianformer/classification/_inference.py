"""Predictions for images in files."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

from laplacianformer._util.devices import chosen_device
from laplacianformer._util.errors import InputError
from laplacianformer.data import _images as images
from laplacianformer.inspect._attention_matrix import token_attention
from laplacianformer.inspect._finite import check_outputs
from laplacianformer.plots import AttentionFigureRow
from laplacianformer.weights import Weights

BATCH_SIZE = 32
_BATCH_PIXELS = 2**23  # of a batch: 32 images of 512 x 512, or one of the largest


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of one image, the best first; or the reason why there are none."""

    path: Path
    ranking: tuple[tuple[str, float], ...] = ()  # class and probability
    failure: str = ""
    model_input: Tensor | None = None  # (channels, height, width), if it was to be kept


def predict(
    loaded: Weights, names: Sequence[str], *, top: int = 3, device: str | None = None, keep_inputs: int = 0
) -> Iterator[Prediction]:
    """One prediction per file, in the order of `names` (files, folders, patterns). Memory: one batch of images.

    Args:
        top: number of classes in each ranking.
        device: such as "cuda:1"; None takes the accelerator if there is one, or the CPU.
        keep_inputs: the number of images, the first that can be read, whose input to the model is kept for drawing.
    """
    chosen = chosen_device(device)
    model = loaded.model.to(chosen)
    transform = images.to_input(loaded.input)
    files = images.find(names)
    batch_size = max(1, min(BATCH_SIZE, _BATCH_PIXELS // math.prod(loaded.input["size"][1:])))
    while batch := list(islice(files, batch_size)):
        inputs = [failure or model_input(path, transform) for path, failure in batch]
        readable = [entry for entry in inputs if isinstance(entry, Tensor)]
        rankings = iter(_rankings(loaded, model, torch.stack(readable).to(chosen), top) if readable else [])
        for (path, _), entry in zip(batch, inputs, strict=True):
            if isinstance(entry, str):
                yield Prediction(path, failure=entry)
            else:
                yield Prediction(path, next(rankings), model_input=entry if keep_inputs > 0 else None)
                keep_inputs -= 1


def model_input(path: Path, transform: Callable[[Image.Image], Tensor]) -> Tensor | str:
    """The tensor that the model takes, or the reason why the image can't be read."""
    try:
        return transform(images.read(path))
    except InputError as error:
        return str(error)


@torch.inference_mode()
def _rankings(loaded: Weights, model: nn.Module, inputs: Tensor, top: int) -> list[tuple[tuple[str, float], ...]]:
    logits = model(inputs).float()
    check_outputs(loaded.path, logits, model, inputs)
    best = logits.softmax(1).cpu().topk(min(top, len(loaded.classes)))
    return [
        tuple((loaded.classes[index], value) for index, value in zip(indices, values, strict=True))
        for indices, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def attention_rows(
    loaded: Weights, predictions: Iterable[Prediction], point: tuple[float, float] = (0.5, 0.5)
) -> list[AttentionFigureRow]:
    """For `plots.draw_attention`: what the token at `point` attends to, for predictions that kept their input.

    point: x and y from 0 (left, top) to 1 (right, bottom).
    """
    return [
        AttentionFigureRow(
            title=f"{prediction.path.name}\n{prediction.ranking[0][0]}, {100 * prediction.ranking[0][1]:.0f} %",
            image=images.to_picture(prediction.model_input, loaded.input),
            stages=token_attention(loaded.model, prediction.model_input, point),
        )
        for prediction in predictions
        if prediction.model_input is not None
    ]
