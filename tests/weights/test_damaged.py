"""Weights files whose tensors changed after they were written: an error says so, whatever they are loaded for."""

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors import safe_open

from laplacianformer._util.errors import InputError
from laplacianformer.detection import load_detector, save_detector
from laplacianformer.segmentation import load_segmenter, save_segmenter
from laplacianformer.sequences import SequenceEncoder, load_encoder, save_encoder
from laplacianformer.weights import load_weights, save_weights
from tests.detection import helpers as detection
from tests.helpers import save_small
from tests.segmentation import helpers as segmentation


def save_classifying(path: Path) -> None:
    arguments = {name: value for name, value in detection.BACKBONE.items() if name != "out_indices"}
    model = timm.create_model("laplacianformer_nano", num_classes=2, **arguments)
    save_weights(path, model, classes=["x", "y"], metadata={})


def save_encoding(path: Path) -> None:
    model = SequenceEncoder(16, 20, 10, dim=16, landmarks=4, depth=1)
    save_encoder(path, model, sequence="listops", classes=tuple("0123456789"))


def save_detecting(path: Path) -> None:
    save_detector(path, detection.small("retinanet"), classes=["a", "b", "c"])


def save_segmenting(path: Path) -> None:
    save_segmenter(path, segmentation.small(), labels=segmentation.CLASSES)


def start_of_a_detector(path: Path) -> None:
    detection.small("retinanet", weights=path)


def start_of_a_segmenter(path: Path) -> None:
    segmentation.small(weights=path)


USES: list[tuple[Any, Any]] = [
    (save_small, load_weights),
    (save_encoding, load_encoder),
    (save_detecting, load_detector),
    (save_segmenting, load_segmenter),
    (save_classifying, start_of_a_detector),
    (save_detecting, start_of_a_detector),
    (save_segmenting, start_of_a_segmenter),
]


@pytest.mark.parametrize(("save", "load"), USES)
def test_a_flipped_bit_is_found(tmp_path: Path, save: Any, load: Any) -> None:
    path = tmp_path / "model.safetensors"
    save(path)
    load(path)
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    rng = random.Random(0)
    for where in (start, len(data) - 1, *(rng.randrange(start, len(data)) for _ in range(3))):
        broken = bytearray(data)
        broken[where] ^= 1
        path.write_bytes(broken)
        with pytest.raises(InputError, match="is damaged, or was changed: its tensors do not have the checksum"):
            load(path)


def header(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write(path: Path, said: dict[str, Any], tensors: bytes) -> None:
    text = json.dumps(said).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + tensors)


def test_tensors_that_were_exchanged_are_found(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_small(path)
    said, tensors = header(path)
    shapes = {name: (entry["shape"], entry["dtype"]) for name, entry in said.items() if name != "__metadata__"}
    values = {name: tensors[slice(*said[name]["data_offsets"])] for name in shapes}
    one, other = next((a, b) for a in shapes for b in shapes if shapes[a] == shapes[b] and values[a] != values[b])
    said[one], said[other] = said[other], said[one]
    write(path, said, tensors)
    with pytest.raises(InputError, match="is damaged"):
        load_weights(path)


def test_files_without_a_checksum_are_loaded(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    model = save_small(path)
    said, tensors = header(path)
    assert len(said["__metadata__"].pop("sha256")) == 64
    write(path, said, tensors)
    for name, tensor in load_weights(path).model.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_copy_in_another_type_has_a_checksum_of_its_own(tmp_path: Path, dtype: torch.dtype) -> None:
    save_small(tmp_path / "model.safetensors")
    loaded = load_weights(tmp_path / "model.safetensors")
    save_weights(
        tmp_path / "copy.safetensors", loaded.model, classes=loaded.classes, metadata=loaded.metadata, dtype=dtype
    )
    load_weights(tmp_path / "copy.safetensors")
    with safe_open(tmp_path / "copy.safetensors", "pt") as file:
        assert file.metadata()["sha256"] != loaded.metadata["sha256"]
