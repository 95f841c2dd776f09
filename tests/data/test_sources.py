"""Data sets: what is read, and the errors where something is missing."""

import gzip
import logging
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from laplacianformer._util.errors import InputError
from laplacianformer.classification._batches import open_loaders, training_transform
from laplacianformer.classification._recipe import Augment, Data, Recipe, load_recipe
from laplacianformer.data import _images as images
from laplacianformer.data._evaluation import EvaluationImages, InputReader
from laplacianformer.data._memory import crop_and_flip
from laplacianformer.data._sources import Source, open_images, parse
from laplacianformer.data._stream import TrainingImages

from ..training.helpers import image_folder


def recipe(root: Path, *overrides: str, reader: str = "folder") -> Recipe:
    data = [f"data.root={root}", f"data.reader={reader}", "data.size=16", "data.workers=0", "optimise.batch_size=6"]
    return load_recipe("cifar10", [*data, *overrides])


def test_a_folder_gives_every_image_with_the_class_of_its_folder(tmp_path: Path) -> None:
    opened = open_images(Source("folder", str(image_folder(tmp_path)), "train"))
    assert opened.classes == ("class0", "class1", "class2")
    read = [opened.read(index) for index in range(len(opened))]
    assert [label for _, label in read] == sorted(8 * [0, 1, 2])
    assert {(image.mode, image.size) for image, _ in read} == {("RGB", (16, 16))}
    assert Path(opened.name(0)) == tmp_path / "train" / "class0" / "0.png"


@pytest.mark.parametrize("count", [3, 7, 12, 100])
def test_a_limited_number_of_images_is_spread_over_all_classes(tmp_path: Path, count: int) -> None:
    source = Source("folder", str(image_folder(tmp_path)), "train", samples=count)
    opened, every = open_images(source), open_images(Source("folder", source.root, "train"))
    names = [opened.name(index) for index in range(len(opened))]
    assert len(set(names)) == len(names) == min(count, len(every))
    labels = [opened.read(index)[1] for index in range(len(opened))]
    assert max(labels.count(label) for label in range(3)) - min(labels.count(label) for label in range(3)) <= 1
    assert Path(names[-1]).parent.name == f"class{labels[-1]}"


def test_a_cache_of_no_image_that_can_be_read_is_refused(tmp_path: Path) -> None:
    """Also where every image may be unreadable."""
    for path in image_folder(tmp_path).rglob("*.png"):
        path.write_text("no image")
    with pytest.raises(InputError, match=r"none of the 24 images can be read; the last: .*7\.png: not an image"):
        open_loaders(recipe(tmp_path, "data.corrupt_limit=1", "data.cache=true"))


def test_a_folder_is_listed_by_one_process_for_all(tmp_path: Path) -> None:
    listed = []

    def once(make):
        listed.append(make())
        return listed[-1]

    source = Source("folder", str(image_folder(tmp_path)), "train")
    first = open_images(source, once)
    second = open_images(source, lambda make: listed[0])
    assert second.name(5) == first.name(5)
    assert len(listed) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # timm leaves the tar open
def test_test_folders_and_tars_are_found(tmp_path: Path) -> None:
    image_folder(tmp_path / "a")
    (tmp_path / "a" / "val").rename(tmp_path / "a" / "test")
    assert len(open_images(Source("folder", str(tmp_path / "a"), "validation"))) == 12
    (tmp_path / "b").mkdir()
    with tarfile.open(tmp_path / "b" / "train.tar", "w") as tar:
        tar.add(tmp_path / "a" / "train", "train")
    packed = open_images(Source("folder", str(tmp_path / "b"), "train"))
    assert (len(packed), packed.classes) == (24, ("class0", "class1", "class2"))
    assert packed.read(23)[1] == 2


def test_data_sets_can_be_sent_to_worker_processes(tmp_path: Path) -> None:
    """Also where these are not forked: everything they need can be pickled."""
    root, data = str(image_folder(tmp_path)), Data(size=16)
    for reader in ("folder", "torch/image_folder", "digits"):
        images = open_images(Source(reader, root, "validation"))
        training = TrainingImages(images, training_transform(data, Augment()), 16, 0)
        for made, key in ((training, (0, 5)), (EvaluationImages(images, InputReader(data.input), 0, 1), 5)):
            copy = pickle.loads(pickle.dumps(made))
            assert torch.equal(copy[key][0], made[key][0])


def test_digits_are_split_without_overlap_and_by_class() -> None:
    train, val = (open_images(Source("digits", None, split)) for split in ("train", "validation"))
    assert (len(train), len(val), train.classes[9]) == (1437, 360, "9")
    counts = torch.bincount(torch.tensor([val.read(index)[1] for index in range(360)]))
    assert counts.min() >= 34, "a fifth of each digit"


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_idx_files_are_found_in_subfolders_too(tmp_path: Path, packed: bool) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 4), dtype=np.uint8)
    folder = tmp_path / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    files = {"images-idx3": struct.pack(">4I", 0x803, 7, 5, 4) + pixels.tobytes()}
    files["labels-idx1"] = struct.pack(">2I", 0x801, 7) + bytes([0, 1, 2, 0, 1, 2, 3])
    for name, content in files.items():
        path = folder / f"t10k-{name}-ubyte{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(content) if packed else content)
    images = open_images(Source("idx", str(tmp_path), "validation"))
    assert images.classes == ("0", "1", "2", "3")
    image, label = images.read(6)
    assert label == 3
    assert np.array_equal(np.asarray(image)[..., 1], pixels[6])
    (folder / f"t10k-images-idx3-ubyte{'.gz' if packed else ''}").write_bytes(gzip.compress(b"\0\0\x08\x03\0\0"))
    with pytest.raises(InputError, match="is not a complete idx file"):
        open_images(Source("idx", str(tmp_path), "validation"))


def test_an_idx_file_that_is_not_gzip_is_named(tmp_path: Path) -> None:
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(b"no gzip")
    with pytest.raises(InputError, match=r"t10k-images-idx3-ubyte.gz is not a complete idx file"):
        open_images(Source("idx", str(tmp_path), "validation"))


def test_missing_readers_of_timm_are_reported_in_one_line(tmp_path: Path) -> None:
    for reader in ("torch/cifar10", "torch/nothing"):
        with pytest.raises(InputError, match=f"can't open {reader}") as error:
            open_images(Source(reader, str(tmp_path), "train"))
        assert "\n" not in str(error.value)


def test_torchvision_data_is_read_through_timm(tmp_path: Path) -> None:
    images = open_images(Source("torch/image_folder", str(image_folder(tmp_path)), "train"))
    assert (len(images), images.classes) == (24, ("class0", "class1", "class2"))
    assert images.read(9)[1] == 1


def test_training_reads_images_as_eval_and_predict_do(tmp_path: Path) -> None:
    folder = image_folder(tmp_path) / "train" / "class0"
    Image.fromarray(np.zeros((16, 8, 4), np.uint8)).save(folder / "0.png")  # transparent
    Image.fromarray(np.full((16, 8), 30000, np.uint16)).save(folder / "1.png")
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.new("RGB", (16, 8)).save(folder / "2.png", exif=turned)
    for reader in ("folder", "torch/image_folder"):
        opened = open_images(Source(reader, str(tmp_path), "train"))
        for index in range(3):
            expected = images.read(Path(opened.name(index)))
            assert np.array_equal(opened.read(index)[0], expected)
        assert [opened.read(index)[0].getpixel((0, 0))[0] for index in (0, 1)] == [255, 117]
        assert opened.read(2)[0].size == (8, 16)


@pytest.mark.parametrize("cache", [True, False], ids=["memory", "stream"])
def test_held_out_images_are_what_predict_sees(tmp_path: Path, cache: bool) -> None:
    """Also with cropped borders, from images that are not square."""
    for path in image_folder(tmp_path).rglob("val/*/*.png"):
        with Image.open(path) as image:
            image.resize((24, 20)).save(path)
    kind = [] if cache else ["data.cache=false", "augment.crop_padding=0"]
    given = recipe(tmp_path, "data.crop_pct=0.8", "data.interpolation=bilinear", *kind)
    transform = images.to_input(given.data.input)
    expected = [transform(images.read(path)) for path in sorted(tmp_path.rglob("val/*/*.png"))]
    found = torch.cat([batch.images for batch in open_loaders(given).val])
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=2e-6)


def test_classes_of_validation_must_be_those_of_training(tmp_path: Path) -> None:
    image_folder(tmp_path)
    (tmp_path / "val" / "class1").rename(tmp_path / "val" / "other")
    for reader in ("folder", "torch/image_folder"):
        with pytest.raises(InputError, match=r"classes that training doesn't know: other; .* has no images of: class1"):
            open_loaders(recipe(tmp_path, reader=reader))


def test_a_file_that_is_no_tar_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.tar").write_bytes(b"no tar")
    with pytest.raises(InputError, match=r"can't read .*train.tar"):
        open_images(Source("folder", str(tmp_path), "train"))


def test_mistakes_in_a_folder_are_reported(tmp_path: Path) -> None:
    def said(root: Path | None, split: str = "train", reader: str = "folder") -> str:
        with pytest.raises(InputError) as error:
            open_images(Source(reader, str(root) if root else None, split))
        assert "\n" not in str(error.value)
        return str(error.value)

    assert f"there is no {tmp_path / 'nowhere'}" in said(tmp_path / "nowhere")
    assert "give --data DIR" in said(None)
    assert "unknown reader 'some': expected folder, digits, idx, torch/NAME" in said(tmp_path, reader="some")
    assert "has no train or training folder" in said(tmp_path)
    (tmp_path / "train").mkdir()
    assert "found no images in" in said(tmp_path)

    image_folder(tmp_path / "data")
    (tmp_path / "data" / "train" / "empty").mkdir()
    assert "train/empty has no images" in said(tmp_path / "data")
    (tmp_path / "data" / "val").rename(tmp_path / "data" / "other")
    assert "has no validation or val or valid or eval" in said(tmp_path / "data", "validation")
    assert "folder (or .tar), but train: expected validation/CLASS/image" in said(tmp_path / "data", "validation")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # timm leaves the tar open
def test_an_image_outside_the_class_folders_is_named_and_refused(tmp_path: Path) -> None:
    """timm puts it into a class without a name."""
    stray = image_folder(tmp_path) / "val" / "stray.png"
    Image.new("RGB", (16, 16)).save(stray)
    with pytest.raises(InputError, match=r"val/stray\.png lies outside the class folders: expected .*val/CLASS/image"):
        open_loaders(recipe(tmp_path))
    with tarfile.open(tmp_path / "test.tar", "w") as tar:
        tar.add(stray, "stray.png")
        tar.add(tmp_path / "val" / "class0", "class0")
    with pytest.raises(InputError, match=r"stray\.png lies outside the class folders"):
        open_images(Source("folder", str(tmp_path), "test"))


def test_data_is_given_as_a_reader_and_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse("some/folder") == (None, "some/folder")
    assert parse("idx:some/folder") == ("idx", "some/folder")
    assert parse("hfds/imagenet-1k:") == ("hfds/imagenet-1k", None)
    assert parse("digits") == ("digits", None)
    monkeypatch.chdir(tmp_path)
    for name in ("a: b", "digits"):
        (tmp_path / name).mkdir()
        assert parse(name) == (None, name)


# ---- unreadable images ----


def broken(root: Path) -> Path:
    """One truncated image, and one file that is no image."""
    image_folder(root, train=8)
    whole = (root / "train" / "class0" / "3.png").read_bytes()
    (root / "train" / "class0" / "3.png").write_bytes(whole[: len(whole) // 2])
    (root / "train" / "class1" / "5.png").write_bytes(b"not an image")
    return root


@pytest.mark.parametrize("cache", [True, False], ids=["memory", "stream"])
def test_unreadable_images_are_named_and_replaced(tmp_path: Path, cache: bool, caplog) -> None:
    kind = [] if cache else ["data.cache=false", "augment.crop_padding=0", "data.workers=1"]
    with caplog.at_level(logging.WARNING):
        loaders = open_loaders(recipe(broken(tmp_path), "data.corrupt_limit=0.1", *kind))
        batches = [batch for epoch in range(3) for batch in loaders.train.epoch(epoch)]
    assert all(batch.images.shape == (6, 3, 16, 16) for batch in batches)
    named = caplog.text + "".join(line for batch in batches for line in batch.corrupt)
    assert "class0/3.png: " in named
    assert "class1/5.png: " in named


def test_too_many_unreadable_images_stop_the_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"more than 5\.000% of 24 samples .*t be read; the last: .*class1/5\.png"):
        open_loaders(recipe(broken(tmp_path), "data.corrupt_limit=0.05"))


# ---- augmentation ----


@pytest.mark.parametrize("cache", [True, False], ids=["memory", "stream"])
def test_augmentation_depends_on_sample_and_epoch_and_not_on_the_reading_process(tmp_path: Path, cache: bool) -> None:
    kind = [] if cache else ["data.cache=false", "augment.crop_padding=0", "augment.erase=0.5"]
    given = recipe(image_folder(tmp_path), *kind)
    whole = list(open_loaders(given).train.epoch(2))
    torch.manual_seed(99)
    halves = [list(open_loaders(given, rank, 2).train.epoch(2, 1)) for rank in range(2)]
    for batch, *parts in zip(whole[1:], *halves, strict=True):
        for rank, part in enumerate(parts):
            assert torch.equal(part.images, batch.images[rank::2])
            assert torch.equal(part.targets, batch.targets[rank::2])
    other = next(iter(open_loaders(given).train.epoch(3)))
    assert not torch.equal(other.images, whole[0].images)


def test_crops_and_flips_of_cached_images_are_windows_of_the_padded_image() -> None:
    pixels = torch.randint(1, 256, (40, 3, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    chance = torch.rand(40, 3, generator=torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(pixels, (2, 2, 2, 2))
    seen = set()
    for number, found in enumerate(crop_and_flip(pixels, chance, flip=0.5, padding=2)):
        windows = [
            (y, x, flip)
            for y in range(5)
            for x in range(5)
            for flip in (False, True)
            if torch.equal(found.flip(-1) if flip else found, padded[number, :, y : y + 6, x : x + 6])
        ]
        assert len(windows) == 1
        seen.add(windows[0])
    assert {flip for *_, flip in seen} == {False, True}
    assert {y for y, *_ in seen} == {x for _, x, _ in seen} == set(range(5))
    assert torch.equal(crop_and_flip(pixels, chance, flip=0.0, padding=0), pixels)
