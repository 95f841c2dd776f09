"""A trained encoder of sequences in one safetensors file that describes itself.

The metadata holds, each as text: `format`; `task`, "sequences"; `architecture`, "sequence_encoder"; `model_args`, the
arguments of `SequenceEncoder` (JSON); `sequence`, the task: listops, pathfinder, image, text, retrieval, recall or
inpaint;
`classes`, names of the outputs (JSON list); and whatever the writer adds, such as recipe, metrics and commit.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from laplacianformer._util import limits
from laplacianformer._util.errors import InputError
from laplacianformer._util.tensor_files import (
    check_tensors,
    json_entry,
    read_header,
    state_dict,
    write_tensors,
)
from laplacianformer.sequences._encoder import SequenceEncoder
from laplacianformer.sequences._sources import IMAGES, VOCABULARY, form_of
from laplacianformer.weights._built import load_made
from laplacianformer.weights._file import FORMAT, check_task, with_defaults_of_file

_NAME = "sequence_encoder"
_KEYS = ("task", "architecture", "model_args", "sequence", "classes")


@dataclass(frozen=True)
class EncoderWeights:
    """An encoder in evaluation mode and what its file says about it."""

    model: SequenceEncoder
    classes: tuple[str, ...]
    sequence: str  # listops, pathfinder, image, text, retrieval, recall or inpaint
    metadata: dict[str, str]
    path: Path


def save_encoder(
    path: Path | str,
    model: SequenceEncoder,
    *,
    sequence: str,
    classes: Sequence[str],
    metadata: Mapping[str, str] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write an encoder to one safetensors file, whole or not at all.

    Args:
        sequence: the task: listops, pathfinder, image, text, retrieval, recall or inpaint.
        classes: names of the outputs, in order.
        metadata: what else the file should say.
        dtype: of the parameters in the file, for example torch.float16. Buffers, a few statistics, keep theirs.
    """
    path = Path(path)
    stated = encoder_metadata(path, model, sequence, classes, metadata or {})
    write_tensors(path, state_dict(model, dtype), stated)


def encoder_metadata(
    path: Path, model: SequenceEncoder, sequence: str, classes: Sequence[str], metadata: Mapping[str, str]
) -> dict[str, str]:
    """What `save_encoder` would write, or its error: a file that can't be read back is not written."""
    try:
        arguments = json.dumps(model.arguments)
    except TypeError as error:
        raise InputError(f"the encoder's arguments can't be written to a weights file: {error}") from None
    stated = {
        "format": FORMAT,
        "task": "sequences",
        "architecture": _NAME,
        "model_args": arguments,
        "sequence": sequence,
        "classes": json.dumps(list(classes)),
        **metadata,
    }
    _checked(path, stated)
    return stated


def load_encoder(path: Path | str) -> EncoderWeights:
    """The encoder of a file that `save_encoder` wrote, in float32 and evaluation mode."""
    path = Path(path)
    _, metadata = read_header(path)
    arguments, classes = _checked(path, metadata)
    model = load_made(path, _NAME, lambda: SequenceEncoder(**arguments))
    return EncoderWeights(model, classes, metadata["sequence"], metadata, path)


def start_from(model: SequenceEncoder, path: Path, sequence: str, classes: Sequence[str]) -> None:
    """Load the tensors of a file into an encoder that is to be trained. The head keeps its random weights where the
    task or the classes are others."""
    loaded = load_encoder(path)
    expected, chosen = model.state_dict(), dict(loaded.model.state_dict())
    if (sequence, tuple(classes)) != (loaded.sequence, loaded.classes):
        chosen = {key: tensor for key, tensor in chosen.items() if not key.startswith("head.")}
        chosen |= {key: tensor for key, tensor in expected.items() if key.startswith("head.")}
    check_tensors(path, f"{_NAME} of the recipe", expected, chosen)
    model.load_state_dict(chosen)


def _checked(path: Path, metadata: Mapping[str, str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Arguments and classes of a file, if they are consistent."""
    check_task(path, metadata, "sequences")
    missing = [key for key in _KEYS if key not in metadata]
    if missing or metadata["architecture"] != _NAME:
        what = f"no {', '.join(missing)} in its metadata" if missing else f"a {limits.shown(metadata['architecture'])}"
        raise InputError(f"{path} is not an encoder of this package ({what}): expected a file of save_encoder")
    arguments, classes = (json_entry(path, metadata, key) for key in ("model_args", "classes"))
    sequence = metadata["sequence"]
    if sequence not in VOCABULARY:
        raise InputError(f"{path} is for {limits.shown(sequence)}: expected one of {', '.join(VOCABULARY)}")
    given = f"{path} has model_args {limits.shown(arguments)}"
    if not isinstance(arguments, dict) or arguments.get("vocabulary") != VOCABULARY[sequence]:
        raise InputError(f"{given}: expected a vocabulary of {VOCABULARY[sequence]}")
    limits.check_arguments(arguments, f"model_args in the metadata of {path}")
    if not isinstance(arguments.get("attention_args") or {}, dict):
        raise InputError(f"{given}: expected attention_args with names")
    if bool(arguments.get("pairs")) != form_of(sequence).pairs:
        raise InputError(f"{given}: expected pairs for retrieval, and for nothing else")
    if bool(arguments.get("per_token")) != form_of(sequence).per_token:
        raise InputError(f"{given}: expected per_token for inpaint, and for nothing else")
    if arguments.get("axes", 1) != 1 and sequence not in IMAGES:
        raise InputError(f"{given}: expected one axis for {sequence}, whose tokens are no images")
    count = arguments.get("num_classes")
    fits = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
    if not fits or len(classes) != count or len(set(classes)) != count:
        raise InputError(
            f"{path} names {limits.shown(classes)} for an encoder of {limits.shown(count)} classes: expected as many "
            "different names"
        )
    return with_defaults_of_file(metadata, arguments), tuple(classes)
