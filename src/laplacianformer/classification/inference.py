"""Predictions for pictures in files: `laplacianformer predict`."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from laplacianformer import assets as shipped
from laplacianformer import plots, weights
from laplacianformer._util.devices import chosen_device
from laplacianformer._util.errors import InputError
from laplacianformer._util.files import check_file
from laplacianformer.data import images
from laplacianformer.inspect.attention_maps import attention_maps
from laplacianformer.weights import Weights

BATCH = 32
MOST_DRAWN = 12  # rows of an attention picture


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of one picture, the best first; or the reason why there are none."""

    image: Path
    ranking: tuple[tuple[str, float], ...] = ()
    failure: str = ""
    seen: Tensor | None = None  # what the model took, where it was asked for


def run(
    names: Sequence[str],
    *,
    file: Path | None,
    top: int,
    as_json: bool,
    attention: Path | None,
    query: tuple[float, float],
    device: str | None,
) -> int:
    """The command. Returns its exit code: 0, 1 where some pictures failed, 2 where all did."""
    if attention is not None:
        plots.require()
        check_file(attention)
    loaded = weights.load_chosen(file)
    predictions = list(predict(loaded, names, top=top, device=device, keep=attention is not None))
    if as_json:
        print(json.dumps(as_dict(loaded, predictions), indent=2))
    elif any(prediction.ranking for prediction in predictions):
        _print(loaded, predictions)
    for failed in (prediction for prediction in predictions if prediction.failure):
        Console(stderr=True, soft_wrap=True).print(Text(f"{shown(failed.image)}: {failed.failure}", "red"))
    if attention is not None:
        draw_attention(loaded, predictions, attention, query)
    failures = sum(bool(prediction.failure) for prediction in predictions)
    return 0 if failures == 0 else 1 if failures < len(predictions) else 2


def predict(
    loaded: Weights, names: Sequence[str], *, top: int = 3, device: str | None = None, keep: bool = False
) -> Iterator[Prediction]:
    """One prediction a file, in the order of `names` (files, folders, patterns). Memory: a batch of pictures.

    `keep` keeps what the model took, for drawing, of at most MOST_DRAWN pictures.
    """
    place = chosen_device(device)
    model = loaded.model.to(place)
    transform = images.to_input(loaded.input)
    files = images.find(names)
    left = MOST_DRAWN if keep else 0
    while batch := list(islice(files, BATCH)):
        inputs = [problem or _input(path, transform) for path, problem in batch]
        good = [entry for entry in inputs if isinstance(entry, Tensor)]
        rankings = iter(_rankings(loaded, model, torch.stack(good).to(place), top) if good else [])
        for (path, _), entry in zip(batch, inputs, strict=True):
            if isinstance(entry, str):
                yield Prediction(path, failure=entry)
            else:
                yield Prediction(path, next(rankings), seen=entry if left > 0 else None)
                left -= 1


def _input(path: Path, transform: Callable[[Image.Image], Tensor]) -> Tensor | str:
    """What the model takes of a picture, or the reason why it takes nothing."""
    try:
        return transform(images.read(path))
    except InputError as error:
        return str(error)


@torch.inference_mode()
def _rankings(loaded: Weights, model: torch.nn.Module, inputs: Tensor, top: int) -> list[tuple[tuple[str, float], ...]]:
    probabilities = model(inputs).float().softmax(1).cpu()
    if not probabilities.isfinite().all():
        raise InputError(f"{loaded.path} gives probabilities that are not finite: its training went wrong")
    best = probabilities.topk(min(top, len(loaded.classes)))
    return [
        tuple((loaded.classes[index], value) for index, value in zip(indices, values, strict=True))
        for indices, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def draw_attention(
    loaded: Weights, predictions: Sequence[Prediction], output: Path, query: tuple[float, float]
) -> None:
    rows = []
    for prediction in predictions:
        if prediction.seen is not None:
            best, probability = prediction.ranking[0]
            rows.append(
                plots.AttentionRow(
                    title=f"{prediction.image.name}\n{best}, {100 * probability:.0f} %",
                    picture=images.to_picture(prediction.seen, loaded.input),
                    maps=attention_maps(loaded.model, prediction.seen, query),
                )
            )
    if not rows:
        raise InputError(f"no picture could be read, so {output} was not drawn")
    plots.attention_map(rows, output)
    readable = sum(not prediction.failure for prediction in predictions)
    rest = f" (the first {len(rows)} of {readable} pictures)" if readable > len(rows) else ""
    Console(stderr=True, soft_wrap=True).print(Text(f"Attention: {output}{rest}"))


def as_dict(loaded: Weights, predictions: Sequence[Prediction]) -> dict[str, Any]:
    return {
        "weights": {
            "file": str(loaded.path),
            "shipped": loaded.path == shipped.PATH,
            "architecture": loaded.metadata["architecture"],
            "classes": loaded.classes,
            "metrics": weights.metrics(loaded),
        },
        "predictions": [
            {
                "image": str(prediction.image),
                "classes": [{"class": name, "probability": value} for name, value in prediction.ranking],
            }
            for prediction in predictions
            if not prediction.failure
        ],
        "failures": [
            {"image": str(prediction.image), "reason": prediction.failure}
            for prediction in predictions
            if prediction.failure
        ],
    }


def _print(loaded: Weights, predictions: Sequence[Prediction]) -> None:
    table = Table(caption=Text(weights.describe(loaded)), caption_justify="left")
    table.add_column("image", overflow="fold")
    table.add_column("prediction")
    table.add_column("probability", justify="right", no_wrap=True)
    table.add_column("then")
    for prediction in (prediction for prediction in predictions if prediction.ranking):
        (best, probability), *others = prediction.ranking
        then = ", ".join(f"{name} {100 * value:.1f} %" for name, value in others)
        table.add_row(Text(shown(prediction.image)), Text(best, "bold"), f"{100 * probability:.1f} %", Text(then))
    # A file or a pipe takes lines of any length, and names are not broken in it.
    Console(width=None if sys.stdout.isatty() else 10_000).print(table)


def shown(path: Path) -> str:
    """A file's name with what is not UTF-8 in it replaced, so that any terminal takes it."""
    return str(path).encode(errors="surrogateescape").decode(errors="replace")
