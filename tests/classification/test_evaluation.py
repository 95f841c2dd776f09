"""Evaluation of classifiers: accuracies counted by hand, classes matched by name, nothing counted twice."""

import json
import shutil
import struct
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from laplacianformer._util.errors import InputError
from laplacianformer.classification._evaluation import evaluate, open_batches
from laplacianformer.data import _images as images
from laplacianformer.data import _indexed as indexed
from laplacianformer.weights import load_weights, save_weights
from tests.classification.helpers import labelled_folder
from tests.data.helpers import encoded, shard
from tests.helpers import CLASSES, INPUT, picture, save_small, small_model


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    save_small(path)
    return load_weights(path)


@pytest.fixture
def data(tmp_path):
    return labelled_folder(tmp_path / "data")


def by_hand(loaded):
    """Logits of all images of `data`, and the indices of their classes."""
    transform = images.to_input(INPUT)
    logits = loaded.model(torch.stack([transform(picture(number)) for number in range(3 * len(CLASSES))])).detach()
    return logits, torch.arange(len(logits)) % len(CLASSES)


def measured(loaded, data, split="validation", **options):
    return evaluate(loaded, open_batches(loaded, str(data), split, **options))


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_numbers_are_those_counted_by_hand(loaded, data, batch_size):
    result = measured(loaded, data, batch_size=batch_size)
    logits, truth = by_hand(loaded)
    confusion = torch.zeros(7, 7, dtype=torch.long)
    for actual, predicted in zip(truth, logits.argmax(1), strict=True):
        confusion[actual, predicted] += 1
    assert result.confusion == confusion.tolist()
    assert 0 < result.top1 < 1
    assert result.top1 == pytest.approx((logits.argmax(1) == truth).float().mean().item())
    assert result.top5 == pytest.approx((logits.topk(5).indices == truth[:, None]).any(1).float().mean().item())
    assert result.per_class == {name: confusion[i, i].item() / 3 for i, name in enumerate(CLASSES)}
    assert (result.images, result.unreadable) == (21, [])
    assert result.images_per_second > result.images_per_second_with_reading > 0


def test_workers_change_nothing(loaded, data):
    alone, helped = (measured(loaded, data, workers=count) for count in (0, 1))
    assert alone.confusion == helped.confusion


def test_five_classes_have_no_top_5(loaded, data, tmp_path):
    save_small(tmp_path / "model.safetensors")
    few = load_weights(tmp_path / "model.safetensors")
    few.model.reset_classifier(5)
    few = type(few)(few.model, CLASSES[:5], few.input, few.metadata, few.path)
    for name in CLASSES[5:]:
        shutil.rmtree(data / name)
    assert measured(few, data).top5 is None


# ---- where images come from ----


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # timm leaves the tar open
def test_a_split_of_the_folder_a_tar_and_a_torchvision_folder_are_read(loaded, data, tmp_path):
    expected = measured(loaded, data).confusion
    shutil.copytree(data, tmp_path / "parent" / "val")
    (tmp_path / "parent" / "train" / "ant").mkdir(parents=True)
    picture(99).save(tmp_path / "parent" / "train" / "ant" / "99.png")
    with tarfile.open(tmp_path / "data.tar", "w") as archive:
        archive.add(data, "data")
    for name in (f"{tmp_path}/parent", f"{tmp_path}/data.tar", f"torch/folder:{tmp_path}/data"):
        assert measured(loaded, name).confusion == expected, name


def test_splits_side_by_side_are_not_read_as_one_set(loaded, data, tmp_path):
    """Without a name it is the one that training would evaluate on."""
    for name in ("train", "test"):
        shutil.copytree(data, tmp_path / "parent" / name)
    (tmp_path / "parent" / "test" / "cat" / "2.png").unlink()
    assert measured(loaded, tmp_path / "parent").images == 20
    assert measured(loaded, tmp_path / "parent", "train").images == 21
    shutil.rmtree(tmp_path / "parent" / "test")
    with pytest.raises(InputError, match=r"has no validation or val .*, but train: expected validation/CLASS/image"):
        open_batches(loaded, str(tmp_path / "parent"))


def test_a_class_may_have_the_name_of_a_split(tmp_path):
    """As in CIFAR-100, which has trains."""
    names = ["car", "train"]
    save_weights(tmp_path / "two.safetensors", small_model(2), classes=names, metadata={"input": json.dumps(INPUT)})
    for number, name in enumerate(names):
        (tmp_path / "data" / name).mkdir(parents=True)
        picture(number).save(tmp_path / "data" / name / "0.png")
    assert measured(load_weights(tmp_path / "two.safetensors"), tmp_path / "data").images == 2


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """Weights that know the digits, in no order."""
    path = tmp_path_factory.mktemp("numbers") / "model.safetensors"
    digits = ["7", "3", "9", "0", "1", "2", "4", "5", "6", "8"]
    save_weights(path, small_model(10), classes=digits, metadata={"input": json.dumps(INPUT)})
    return load_weights(path)


def labelled(loaded, pairs):
    """The confusion matrix of images with the names of their classes, counted by hand."""
    transform = images.to_input(INPUT)
    predicted = loaded.model(torch.stack([transform(image) for image, _ in pairs])).argmax(1)
    confusion = torch.zeros(10, 10, dtype=torch.long)
    for (_, name), number in zip(pairs, predicted, strict=True):
        confusion[loaded.classes.index(name), number] += 1
    return confusion.tolist()


def test_digits_are_read_as_in_training(numbers):
    held_out = indexed.digits(training=False)
    pairs = [(image, held_out.classes[label]) for image, label in map(held_out.read, range(360))]
    assert measured(numbers, "digits").confusion == labelled(numbers, pairs)


def test_idx_files_are_read_as_in_training(numbers, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, 6, 28, 28) + pixels.tobytes())
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, 6) + bytes([0, 7, 3, 3, 9, 1]))
    pairs = [(Image.fromarray(image).convert("RGB"), name) for image, name in zip(pixels, "073391", strict=True)]
    assert measured(numbers, f"idx:{tmp_path}").confusion == labelled(numbers, pairs)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # webdataset leaves its files open
def test_shards_are_read_as_in_training(numbers, tmp_path):
    pytest.importorskip("webdataset")
    samples = [(encoded(picture(number)), number) for number in range(10)]
    shard(tmp_path / "some-0.tar", [*samples, (b"broken", 0)])
    expected = labelled(numbers, [(picture(number), str(number)) for number in range(10)])
    for workers in (0, 2):
        result = measured(numbers, f"wds/some:{tmp_path}", "some-0.tar", workers=workers)
        assert result.confusion == expected
        assert [line.split(": ")[1][:12] for line in result.unreadable] == ["not an image"]


def test_images_are_rotated_and_flattened_as_in_predict(loaded, data):
    """timm alone would read a rotated image as it is stored."""
    before = measured(loaded, data).confusion
    for number in range(21):
        exif = Image.Exif()
        exif[0x0112] = 6
        path = data / CLASSES[number % 7] / f"{number}.png"
        picture(number).transpose(Image.Transpose.ROTATE_90).save(path, exif=exif)
    assert measured(loaded, data).confusion == before


# ---- what is wrong ----


def test_nothing_but_broken_images_is_an_error(loaded, data):
    for path in data.rglob("*.png"):
        path.write_bytes(b"no image")
    with pytest.raises(InputError, match=r"none of the 21 images can be read; the first: .*not an image"):
        measured(loaded, data)
