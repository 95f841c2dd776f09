"""Files that nobody should trust, wherever one is read: what they claim is checked before it is believed."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from laplacianformer._util.errors import InputError
from laplacianformer.classification import load_recipe
from laplacianformer.convert._recipe import Teacher
from laplacianformer.convert._teacher import load_teacher, read_classes
from laplacianformer.detection._evaluation import open_data
from laplacianformer.detection._weights import load_detector, save_detector
from laplacianformer.model._conversion import conversion_of
from laplacianformer.segmentation import load_segmenter, read_labels, save_segmenter
from laplacianformer.segmentation._evaluation import open_data as open_labelled
from laplacianformer.sequences import SequenceEncoder, Wanted, load_encoder, open_sequences, save_encoder
from laplacianformer.weights import _description, load_weights
from tests.convert import helpers as convert
from tests.detection import helpers as detection
from tests.detection.helpers import open_folder
from tests.helpers import INPUT, save_small
from tests.segmentation import helpers as segmentation
from tests.test_limits import MERGED, refused, rewrite


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def claim(path: Path, count: int) -> None:
    """The same metadata with one tensor of so many numbers, which the file system stores nothing for."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    for name in [name for name in header if name != "__metadata__"]:
        del header[name]
    header["huge"] = {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + 4 * count)


def start_of_a_detector(path: Path) -> None:
    detection.small("retinanet", weights=path)


def start_of_a_segmenter(path: Path) -> None:
    segmentation.small(weights=path)


def teacher(path: Path) -> None:
    load_teacher(Teacher(name="vit_tiny_patch16_224", weights=str(path), args=convert.arguments()))


@pytest.mark.parametrize(
    ("load", "holds"),
    [
        (load_weights, "laplacianformer_nano"),
        (load_encoder, "sequence_encoder"),
        (start_of_a_detector, "laplacianformer_nano"),
        (start_of_a_segmenter, "laplacianformer_nano"),
        (teacher, "vit_tiny_patch16_224"),
    ],
)
def test_a_sparse_file_of_100_gb_is_not_read(path: Path, load: Any, holds: str) -> None:
    if load is load_encoder:
        model = SequenceEncoder(16, 20, 10, dim=16, landmarks=4, depth=1)
        save_encoder(path, model, sequence="listops", classes=tuple("0123456789"))
    else:
        save_small(path)
    for count, message in ((25 * 10**9, "at most 4000000000"), (10**9, f"does not hold the {holds}")):
        claim(path, count)
        refused(path, message, load)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("null", "expected keys and values, got None"),
        ("data: {workers: bad}", "section data: workers: input should be a valid integer"),
        (MERGED, "merge keys"),
        ("run: {seed: x}", "section run: seed: input should be a valid integer"),
    ],
)
def test_a_recipe_in_a_detector_is_not_trusted(path: Path, recipe: str, message: str) -> None:
    save_detector(path, detection.small("retinanet"), classes=["a", "b", "c"], metadata={"recipe": recipe})
    loaded = load_detector(path)
    with pytest.raises(InputError, match=message):
        open_data(loaded, "shapes")


@pytest.mark.parametrize(
    "recipe", ["null", "data: [1]", "data: {workers: bad}", "data: {reader: [1]}", "run: {seed: x}", MERGED]
)
def test_a_recipe_in_a_segmenter_is_not_trusted(path: Path, recipe: str) -> None:
    save_segmenter(path, segmentation.small(), labels=segmentation.CLASSES, metadata={"recipe": recipe})
    loaded = load_segmenter(path)
    with pytest.raises(InputError, match="the recipe in the metadata of"):
        open_labelled(loaded, "nowhere")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"description": "x" * 100_001}, "description in the metadata of .* has 100001 characters: at most 100000"),
        ({"x" * 100_001: ""}, r"xxx... \(100001 characters\) in the metadata of .* has 100001 characters"),
        ({"recipe": "x" * 9_000_000}, "recipe in the metadata .* at most 8000000"),
        ({str(number): "" for number in range(1000)}, "entries in its metadata: at most 1000"),
    ],
    ids=["text", "name", "recipe", "entries"],
)
def test_metadata_of_any_length_is_refused(path: Path, changes: dict[str, str], message: str) -> None:
    save_small(path)
    rewrite(path, **changes)
    refused(path, message)
    with pytest.raises(InputError, match=message):
        save_small(path, **changes)


def test_long_metadata_is_shown_in_part(path: Path) -> None:
    save_small(path, description="x" * 90_000, data="y" * 90_000)
    loaded = load_weights(path)
    assert max(map(len, _description.describe(loaded).splitlines())) < 1100
    assert len(_description.origin(loaded)) < 1300


def test_an_input_that_a_model_of_one_size_cannot_take_is_refused(path: Path) -> None:
    convert.save_teacher(path, convert.teacher())
    load_weights(path)
    said = json.dumps({**INPUT, "size": [3, 16, 32]})
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header, tensors = json.loads(file.read(length)), file.read()
    header["__metadata__"]["input"] = said
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + tensors)
    with pytest.raises(InputError, match="states an input of 16 x 32 pixels, and its model takes 32 x 32 alone"):
        load_weights(path)


@pytest.mark.timeout(60)
def test_merge_keys_are_refused_wherever_yaml_is_read(tmp_path: Path) -> None:
    (tmp_path / "labels.yaml").write_text(MERGED)
    with pytest.raises(InputError, match=r"labels.yaml is not YAML: merge keys"):
        read_labels(tmp_path / "labels.yaml")
    with pytest.raises(InputError, match="merge keys"):
        load_recipe("digits", ["model.args={a: &a {b: 1}, c: {<<: [*a, *a]}}"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return detection.coco_folder(tmp_path / "data", train=2, val=1)


def test_masks_that_memory_does_not_hold_are_refused_when_the_file_is_opened(folder: Path) -> None:
    def edit(tree: dict[str, Any]) -> None:
        tree["images"][0].update(width=10_000, height=10_000)
        one = next(entry for entry in tree["annotations"] if entry["image_id"] == tree["images"][0]["id"])
        polygon = {"segmentation": [[1, 1, 9, 1, 9, 9]], "bbox": [1, 1, 8, 8], "area": 32}
        tree["annotations"] = [{**one, **polygon, "id": number} for number in range(1, 22)]

    detection.change(folder, "train", edit)
    message = "has 21 objects with masks of 100000000 pixels: at most 2000000000"
    with pytest.raises(InputError, match=message):
        open_folder(folder, masks=True)
    assert len(open_folder(folder, masks=False)) == 2


@pytest.mark.timeout(30)
def test_many_categories_take_no_time_and_their_names_are_text(folder: Path) -> None:
    def many(tree: dict[str, Any]) -> None:
        tree["categories"] += [{"id": number, "name": f"more {number}"} for number in range(100, 50_100)]

    detection.change(folder, "train", many)
    assert len(open_folder(folder).classes) > 50_000
    for name in (1, ["a"], {"a": 1}, None, True, ""):
        detection.change(folder, "train", lambda tree, name=name: tree["categories"][0].update(name=name))
        with pytest.raises(InputError, match=r"a category needs an id \(a whole number\) and a name \(text\)"):
            open_folder(folder)


@pytest.mark.parametrize("wrong", [{"id": -1}, {"width": 0}, {"width": 10**9}, {"width": 33}])
def test_a_long_name_of_an_image_is_cut_in_messages(folder: Path, wrong: dict[str, int]) -> None:
    detection.change(folder, "train", lambda tree: tree["images"][0].update(file_name="a" * 20_000, **wrong))
    with pytest.raises(InputError, match=r"a\.\.\. \(20000 characters\)") as error:
        open_folder(folder).read(0)
    assert len(str(error.value)) < 1000


def test_a_conversion_names_each_layer_once_and_not_too_many() -> None:
    said = {"attention": "laplacian", "attention_args": {}, "layers": ["a", "b", "a"]}
    with pytest.raises(InputError, match="it names a layer twice"):
        conversion_of(said, "it")
    with pytest.raises(InputError, match="it has more than 1000 values"):
        conversion_of({**said, "layers": list(map(str, range(200_000)))}, "it")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", ["recipe", "annotations", "pairs", "state", "classes"])
def test_a_pipe_in_the_place_of_a_file_is_not_opened(tmp_path: Path, what: str) -> None:
    """Nobody writes to it: opening it would wait for ever."""
    names = {"recipe": "r.yaml", "annotations": "instances_train.json", "pairs": "a.train.tsv"}
    pipe = tmp_path / names.get(what, "pipe")
    os.mkfifo(pipe)
    (tmp_path / "train").mkdir()
    opened = {
        "recipe": lambda: load_recipe(str(pipe)),
        "annotations": lambda: open_folder(tmp_path),
        "pairs": lambda: open_sequences(Wanted("retrieval", "train", 10, str(tmp_path))),
        "state": lambda: teacher(pipe),
        "classes": lambda: read_classes(pipe, 2),
    }
    with pytest.raises(InputError, match=f"can't read .*{pipe.name}: not a regular file"):
        opened[what]()
