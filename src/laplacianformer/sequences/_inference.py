"""Predictions for sequences in files, and for ListOps expressions and questions of associative recall."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from laplacianformer._util.devices import chosen_device
from laplacianformer._util.errors import InputError
from laplacianformer.data import _images as images
from laplacianformer.data._walk import find
from laplacianformer.inspect._finite import check_outputs
from laplacianformer.sequences import _listops as listops
from laplacianformer.sequences import _recall as recall
from laplacianformer.sequences._batches import pad
from laplacianformer.sequences._sources import Array, grey
from laplacianformer.sequences._texts import SUFFIXES, read_text
from laplacianformer.sequences._weights import EncoderWeights

BATCH_SIZE = 8


@dataclass(frozen=True)
class SequencePrediction:
    """The most probable classes of one sequence, the best first; or the reason why there are none."""

    name: str
    ranking: tuple[tuple[str, float], ...] = ()  # class and probability
    failure: str = ""


def predict(
    loaded: EncoderWeights, names: Sequence[str], *, top: int = 3, device: str | None = None
) -> Iterator[SequencePrediction]:
    """One prediction per sequence, in the order of `names`. Memory: one batch.

    Args:
        names: for text: files, folders with *.txt files in them, and patterns; for retrieval: text files, of which
            each two that follow each other are a pair; for image and pathfinder: images; for listops and recall:
            expressions, or files with one in each line.
        top: number of classes in each ranking.
        device: such as "cuda:1"; None takes the accelerator if there is one, or the CPU.
    """
    if loaded.model.per_token:
        raise InputError(
            f"{loaded.path} answers for each token ({loaded.sequence}), and predict shows one answer per sequence: "
            "`laplacianformer eval` measures its accuracy"
        )
    chosen = chosen_device(device)
    model = loaded.model.to(chosen)
    found = _sequences(loaded, names)
    while batch := list(islice(found, BATCH_SIZE)):
        readable = [entry for _, entry in batch if not isinstance(entry, str)]
        rankings: Iterator[tuple[tuple[str, float], ...]] = iter(())
        if readable:
            tokens, mask = pad(readable)
            inputs = tokens.to(chosen), None if mask is None else mask.to(chosen)
            with torch.inference_mode():
                logits = model(*inputs).float()
            check_outputs(loaded.path, logits, model, *inputs)
            rankings = iter(_rankings(loaded, logits.softmax(1).cpu(), top))
        for name, entry in batch:
            failed = isinstance(entry, str)
            yield SequencePrediction(name, () if failed else next(rankings), str(entry) if failed else "")


def _rankings(loaded: EncoderWeights, probabilities: torch.Tensor, top: int) -> list[tuple[tuple[str, float], ...]]:
    best = probabilities.topk(min(top, len(loaded.classes)))
    return [
        tuple((loaded.classes[index], value) for index, value in zip(indices, values, strict=True))
        for indices, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


Found = Iterator[tuple[str, Array | tuple[Array, Array] | str]]  # name, and tokens or the reason why there are none


def _sequences(loaded: EncoderWeights, names: Sequence[str]) -> Found:
    length = loaded.model.length
    if loaded.sequence == "listops":
        return _expressions(names, length, listops)
    if loaded.sequence == "recall":
        return _expressions(names, length, recall)
    if loaded.sequence == "retrieval":
        return _pairs(names, length)
    return _texts(names, length) if loaded.sequence == "text" else _pictures(names, math.isqrt(length))


def _expressions(names: Sequence[str], length: int, rules: Any) -> Found:
    """`rules`: the module with `parse` and `encode`."""
    for name in names:
        try:
            lines = _lines(name)
        except OSError as error:  # a name that is too long, a file that may not be read
            yield name, error.strerror or str(error)
            continue
        if not lines:
            yield name, "the file is empty: expected one expression in each line"
        for label, line in lines.items():
            try:
                tokens = rules.parse(line)
            except InputError as error:
                yield label, str(error)
                continue
            fits = len(tokens) <= length
            yield label, rules.encode(tokens) if fits else f"{len(tokens)} tokens, the model takes {length} at most"


def _lines(name: str) -> dict[str, str]:
    """Expressions by what they are called: the lines of a file, or what is no file."""
    if name.lstrip().startswith(("[", "(")) or not Path(name).is_file():
        return {name: name}
    text = Path(name).read_text(errors="replace").splitlines()
    return {f"{name}, line {number}": line for number, line in enumerate(text, 1) if line.strip()}


def _texts(names: Sequence[str], length: int) -> Found:
    for path, failure in find(names, SUFFIXES, "texts"):
        yield str(path), failure or _text(path, length)


def _text(path: Path, length: int) -> Array | str:
    try:
        return read_text(path, length)
    except InputError as error:
        return str(error)


def _pairs(names: Sequence[str], length: int) -> Found:
    if len(names) % 2:
        raise InputError(f"these weights compare two texts: expected an even number of files, got {len(names)}")
    for one, two in zip(names[::2], names[1::2], strict=True):
        first, second = _text(Path(one), length), _text(Path(two), length)
        if isinstance(first, str) or isinstance(second, str):
            yield f"{one}, {two}", first if isinstance(first, str) else str(second)
        else:
            yield f"{one}, {two}", (first, second)


def _pictures(names: Sequence[str], side: int) -> Found:
    for path, failure in images.find(names):
        if failure:
            yield str(path), failure
            continue
        try:
            yield str(path), grey(images.read(path), side)
        except InputError as error:
            yield str(path), str(error)
