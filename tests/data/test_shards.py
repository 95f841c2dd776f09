"""WebDataset shards: images in an order of their own are read, counted and distributed like those of a folder."""

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from laplacianformer._util.errors import InputError
from laplacianformer.classification import _task as classification
from laplacianformer.classification._batches import open_loaders
from laplacianformer.classification._recipe import Recipe
from laplacianformer.data import _images as images
from laplacianformer.data._batch import Batch
from laplacianformer.data._shards import Part, TimmStream

from ..training.helpers import tiny
from .helpers import encoded, noise, shard

pytest.importorskip("webdataset")
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves its files open


def shards(folder: Path, count: int = 2, each: int = 12) -> Path:
    """train-N.tar and val-0.tar; each image has a label of its own."""
    for number in range(count):
        labels = range(each * number, each * (number + 1))
        shard(folder / f"train-{number}.tar", [(noise(label), label) for label in labels])
    shard(folder / "val-0.tar", [(noise(1000 + label), label) for label in range(12)])
    return folder


def recipe(folder: Path, count: int = 2, **data: object) -> Recipe:
    said = {
        "reader": "wds/some",
        "root": str(folder),
        "train_split": f"train-{{0..{count - 1}}}.tar" if count > 1 else "train-0.tar",
        "val_split": "val-0.tar",
        "train_samples": 24,
        "num_classes": 24,
        "cache": False,
        "workers": 0,
        **data,
    }
    return tiny(folder, data=said, augment={"crop_padding": 0, "mixup": 0.0}, optimise={"epochs": 2})


def labels(batches: Iterable[Batch]) -> list[int]:
    return [int(label) for batch in batches for label in batch.targets]


def test_batches_are_the_same_when_they_are_read_again_also_from_the_middle(tmp_path: Path) -> None:
    loaders = open_loaders(recipe(shards(tmp_path), workers=2))
    whole, again = list(loaders.train.epoch(1)), list(loaders.train.epoch(1, 2))
    assert len(whole) == 4
    assert sorted(labels(whole)) == list(range(24)), "each image once"
    for batch, other in zip(whole[2:], again, strict=True):
        assert torch.equal(batch.images, other.images)
        assert torch.equal(batch.targets, other.targets)
    assert labels(loaders.train.epoch(2)) != labels(whole)
    assert sorted(labels(loaders.val)) == list(range(12))


def test_evaluation_has_each_image_once_and_the_same_number_per_process(tmp_path: Path) -> None:
    shards(tmp_path)
    shard(tmp_path / "val-0.tar", [(noise(label), label) for label in range(13)])
    shares = [labels(open_loaders(recipe(tmp_path), rank, 2).val) for rank in (0, 1)]
    assert len(shares[0]) == len(shares[1]) == 7
    assert sorted(shares[0] + shares[1]) == list(range(-1, 13))


def test_images_are_read_as_everywhere_else(tmp_path: Path) -> None:
    """Put on white, scaled from 16 bits, rotated as their EXIF data says."""
    turned = Image.Exif()
    turned[0x0112] = 6
    odd = [
        encoded(Image.fromarray(np.zeros((16, 8, 4), np.uint8))),
        encoded(Image.fromarray(np.full((16, 16), 30000, np.uint16))),
        encoded(Image.open(io.BytesIO(noise(0))).crop((0, 0, 16, 8)), exif=turned),
        encoded(Image.open(io.BytesIO(noise(1))).convert("L")),
    ]
    shards(tmp_path)
    shard(tmp_path / "val-0.tar", [(image, 0) for image in odd])
    given = recipe(tmp_path)
    transform = images.to_input(given.data.input)
    expected = torch.stack([transform(images.read(io.BytesIO(image))) for image in odd])
    (batch,) = open_loaders(given).val
    assert torch.equal(batch.images, expected)


# ---- what can't be read ----


def damaged(folder: Path) -> Path:
    """One image that can't be decoded, one whose label is no class."""
    shards(folder)
    shard(folder / "train-1.tar", [(noise(1), 2), (b"broken", 1), (noise(2), 24), *[(noise(9), 0)] * 9])
    return folder


def test_unreadable_images_are_named_and_replaced(tmp_path: Path) -> None:
    damaged(tmp_path)
    shard(tmp_path / "val-0.tar", [(b"broken", 1), (noise(5), 1)])
    loaders = open_loaders(recipe(tmp_path))
    batches = list(loaders.train.epoch(0))
    assert [batch.images.shape for batch in batches] == 4 * [(6, 3, 16, 16)]
    lines = [line for batch in batches for line in batch.corrupt]
    assert any(line.endswith("train-1.tar/train-1-1: not an image in a format that Pillow reads") for line in lines)
    assert any(line.endswith("train-1.tar/train-1-2: its label is 24, expected 0 to 23") for line in lines)
    (batch,) = loaders.val
    assert batch.targets.tolist() == [-1, 1]
    assert "val-0.tar/val-0-0: not an image" in batch.corrupt[0]


def test_a_truncated_shard_is_named(tmp_path: Path) -> None:
    shards(tmp_path)
    whole = (tmp_path / "train-1.tar").read_bytes()
    (tmp_path / "train-1.tar").write_bytes(whole[: len(whole) // 2 + 700])
    batches = list(open_loaders(recipe(tmp_path)).train.epoch(0))
    assert len(batches) == 4
    assert any("train-1.tar: the shard breaks off" in line for batch in batches for line in batch.corrupt)


@pytest.mark.parametrize("content", [b"broken", None], ids=["some", "all"])
def test_too_many_unreadable_images_stop_the_run(tmp_path: Path, content: bytes | None) -> None:
    damaged(tmp_path)
    if content is None:
        for number in range(2):
            shard(tmp_path / f"train-{number}.tar", [(b"broken", 0)] * 12)
    with pytest.raises(InputError, match=r"more than 1\.000% of 24 samples .*t be read; the last: .*train-\d\.tar"):
        classification.train(recipe(tmp_path), tmp_path / "run")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"train_split": "train-{0..2}.tar"}, r"there is no .*train-2\.tar"),
        ({"num_classes": None}, r"give data\.num_classes=N"),
        ({"train_samples": None}, r"give data\.train_samples=N"),
        ({"repeats": 2}, r"data\.cache and data\.repeats don't work"),
        ({"val_split": "nothing"}, r"can't open wds/some \(nothing\)"),
    ],
    ids=str,
)
def test_missing_settings_are_reported_in_one_line(tmp_path: Path, data: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        open_loaders(recipe(shards(tmp_path), **data))
    assert "\n" not in str(error.value)


# ---- several processes ----


def test_every_process_gets_shards_for_any_number_of_workers(tmp_path: Path) -> None:
    """Distributed over workers first, two shards would both go to the first process."""
    given = recipe(shards(tmp_path), workers=2)
    parts = [list(open_loaders(given, rank, 2).train.epoch(0)) for rank in (0, 1)]
    assert [len(part) for part in parts] == [4, 4]
    seen = [set(labels(part)) for part in parts]
    assert [len(part) for part in seen] == [12, 12]
    assert seen[0] | seen[1] == set(range(24))


def test_fewer_shards_than_processes_are_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has 1 shards for 2 processes, and each needs at least one"):
        open_loaders(recipe(shards(tmp_path, count=1), count=1), 1, 2)


# ---- what timm streams ----


class Streamed:
    """Stands for a data set of tfds/ or hfids/ that breaks off at its third image."""

    def __init__(self, **options: object) -> None:
        self.reader, self.options = SimpleNamespace(dist_rank=None, dist_num_replicas=None), options

    def __iter__(self) -> Iterator[tuple[object, int]]:
        yield Image.fromarray(np.zeros((4, 4, 4), np.uint8)), 1  # transparent
        yield np.full((4, 4, 3), 7, np.uint8), 9
        raise OSError("no more")


def test_streams_of_timm_are_read_and_named_like_others() -> None:
    stream = TimmStream(Streamed, ["a", "b"], None, "hfids/some")
    first, second, last = stream.shuffled(3, 0, Part(1, 2))
    image, label = stream.read(first)
    assert (image.getpixel((0, 0)), label) == ((255, 255, 255), 1)
    assert stream.name(second) == "hfids/some[1]"
    with pytest.raises(InputError, match="its label is 9, expected 0 to 1"):
        stream.read(second)
    with pytest.raises(InputError, match="the stream breaks off: no more"):
        stream.read(last)
    assert stream.name(last) == "hfids/some"


def test_streams_of_timm_are_distributed_over_processes_by_rank() -> None:
    made = []

    def create(**options: object) -> Streamed:
        made.append(Streamed(**options))
        return made[-1]

    stream = TimmStream(create, ["a", "b"], None, "hfids/some")
    for samples in (stream.shuffled(3, 0, Part(1, 2)), stream.shuffled(3, 1, Part(1, 2)), stream.stored()):
        next(samples)
    assert [(one.reader.dist_rank, one.reader.dist_num_replicas) for one in made] == [(1, 2), (1, 2), (0, 1)]
    assert [one.options["is_training"] for one in made] == [True, True, False]
    assert made[0].options["seed"] != made[1].options["seed"]
