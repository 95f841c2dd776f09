"""COCO files: what they say is read as it is, and what makes no sense is named with its file."""

import copy
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from laplacianformer._util.errors import InputError
from laplacianformer.detection._coco import open_coco
from laplacianformer.detection._recipe import DetectionData
from tests.detection import helpers
from tests.detection.helpers import open_folder

SQUARE = [[10, 8, 30, 8, 30, 20, 10, 20]]  # polygon of the box 10, 8, 20 x 12
COUNTS = [48 * 10 + 8, 12, *[36, 12] * 19, 48 * 48 - (48 * 10 + 8) - 12 - 48 * 19]  # the same, down the columns


def only(folder: Path, **fields: Any) -> None:
    """One object in the first image, with these fields."""

    def edit(tree: dict[str, Any]) -> None:
        one = {"id": 7, "image_id": tree["images"][0]["id"], "category_id": 2, "bbox": [10, 8, 20, 12], "area": 240}
        tree["annotations"] = [{"iscrowd": 0, "segmentation": SQUARE, **one, **fields}]

    helpers.change(folder, "train", edit)


@pytest.mark.parametrize(
    "segmentation", [SQUARE, {"size": [48, 48], "counts": COUNTS}, "text"], ids=["polygon", "counts", "text"]
)
def test_polygons_and_run_lengths_of_both_kinds_give_the_same_mask(folder: Path, segmentation: Any) -> None:
    expected = np.zeros((48, 48), dtype=np.uint8)
    expected[8:20, 10:30] = 1
    if segmentation == "text":
        from pycocotools import mask

        coded = mask.encode(np.asfortranarray(expected))
        segmentation = {"size": [48, 48], "counts": coded["counts"].decode()}
    only(folder, segmentation=segmentation)
    target = open_folder(folder).target(0)
    assert target["boxes"].tolist() == [[10, 8, 30, 20]]
    assert target["labels"].tolist() == [2]
    assert np.array_equal(target["masks"][0].numpy(), expected)


def test_crowds_are_not_trained_on_but_stay_for_evaluation(folder: Path) -> None:
    only(folder, iscrowd=1, segmentation={"size": [48, 48], "counts": COUNTS})
    images = open_folder(folder)
    assert len(images.target(0)["boxes"]) == 0
    assert images.tree["annotations"][0]["iscrowd"] == 1


def test_category_ids_with_gaps_get_labels_without_gaps(folder: Path) -> None:
    def edit(tree: dict[str, Any]) -> None:
        for number, category in enumerate(tree["categories"]):
            category["id"] = 90 - 10 * number
        for one in tree["annotations"]:
            one["category_id"] = 100 - 10 * one["category_id"]

    before = open_folder(folder)
    helpers.change(folder, "train", edit)
    after = open_folder(folder)
    assert after.category_ids == (50, 60, 70, 80, 90)
    assert after.classes == before.classes[::-1]
    for index in range(len(before)):
        assert (after.target(index)["labels"] == 6 - before.target(index)["labels"]).all()


def test_an_image_without_objects_has_an_empty_target(folder: Path) -> None:
    helpers.change(folder, "train", lambda tree: tree.update(annotations=[]))
    image, target = open_folder(folder).read(0)
    assert image.size == (48, 48)
    assert {name: tuple(value.shape) for name, value in target.items()} == {
        "boxes": (0, 4),
        "labels": (0,),
        "masks": (0, 48, 48),
    }


LEFT_OUT = {
    "empty": ({"bbox": [10, 8, 0, 12]}, r"annotation 7 \(of train-00001\.png\) has an empty box: \[10, 8, 0, 12\]"),
    "huge": ({"bbox": [10, 8, 10**400, 12]}, r"annotation 7 .*has an empty box"),
    "not finite": ({"bbox": [10, 8, float("nan"), 12]}, r"annotation 7 .*has an empty box"),
    "outside": ({"bbox": [60, 8, 20, 12]}, r"annotation 7 .*has a box outside of the image"),
    "mask elsewhere": ({"bbox": [35, 30, 10, 10]}, r"annotation 7 .*has a mask that misses its box"),
    "run lengths elsewhere": (
        {"bbox": [35, 30, 10, 10], "segmentation": {"size": [48, 48], "counts": COUNTS}},
        r"annotation 7 .*has a mask that misses its box",
    ),
    "two corners": ({"segmentation": [[10, 8, 30, 20]]}, r"annotation 7 .*has no polygon of three corners"),
}


@pytest.mark.parametrize("what", LEFT_OUT)
def test_an_object_that_teaches_nothing_is_left_out_and_named(
    what: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fields, message = LEFT_OUT[what]
    only(folder, **fields)
    with caplog.at_level(logging.WARNING):
        images = open_folder(folder)
    assert len(images.target(0)["boxes"]) == 0
    import re

    assert re.search(rf"object left out: .*instances_train\.json: {message}", caplog.text)


def test_a_box_is_clipped_at_the_border_and_a_sliver_without_pixels_is_left_out(folder: Path) -> None:
    only(folder, bbox=[-5, 40, 20, 20], segmentation=[[-5, 40, 15, 40, 15, 60, -5, 60]])
    assert open_folder(folder).target(0)["boxes"].tolist() == [[0, 40, 15, 48]]
    only(folder, bbox=[10.1, 8.1, 0.2, 0.2], segmentation=[[10.1, 8.1, 10.3, 8.1, 10.3, 8.3]])
    assert len(open_folder(folder).target(0)["boxes"]) == 0


def duplicate_name(tree: dict[str, Any]) -> None:
    tree["images"].append({**tree["images"][0], "id": 99})


def duplicate_id(tree: dict[str, Any]) -> None:
    tree["images"].append({**tree["images"][0], "file_name": "other.png"})


def first(**fields: Any) -> Any:
    return lambda tree: tree["annotations"][0].update(fields)


REFUSED = {
    "duplicate name": (duplicate_name, r"train-00001\.png appears twice, with the ids 1 and 99"),
    "duplicate id": (duplicate_id, r"train-00001\.png and other\.png have the same id 1"),
    "no width": (lambda tree: tree["images"][0].pop("width"), r"train-00001\.png needs a width and a height"),
    "no images": (lambda tree: tree.update(images=[]), r"has no images"),
    "no categories": (lambda tree: tree.update(annotations=[], categories=[]), r"has no categories"),
    "same category": (
        lambda tree: tree["categories"].append(tree["categories"][0]),
        r"'circle' \(id 1\) appears twice",
    ),
    "not a tree": (lambda tree: tree.pop("annotations"), r"is not a COCO file: expected lists of images"),
    "unknown image": (first(image_id=77), r"annotation 1 is of image 77, which is not in the file"),
    "unknown category": (first(category_id=77), r"annotation 1 has category 77, which is not in the file"),
    "box of three": (first(bbox=[1, 2, 3]), r"annotation 1 .* needs a bbox of four numbers, got \[1, 2, 3\]"),
    "no mask": (first(segmentation=None), r"annotation 1 .* has no segmentation: train RetinaNet"),
    "other size": (first(segmentation={"size": [9, 9], "counts": [81]}), r"annotation 1 .*size \[9, 9\], the image is"),
    "negative id": (
        lambda tree: tree["images"][0].update(id=-1),
        r"train-00001\.png has the id -1: expected 0 or more",
    ),
    "list as image": (first(image_id=[1]), r"annotation 1 is of image \[1\], which is not in the file"),
    "list as category": (first(category_id=[1]), r"annotation 1 has category \[1\], which is not in the file"),
    "crowd": (first(iscrowd=None), r"annotation 1 .*has iscrowd None: expected 0 or 1"),
    "no size": (first(segmentation={"size": None, "counts": [81]}), r"annotation 1 .*size None, the image is"),
    "short runs": (
        first(segmentation={"size": [48, 48], "counts": [5, 6]}),
        r"annotation 1 .*run lengths of 11 pixels, the image has 2304",
    ),
    "fractions": (first(segmentation={"size": [48, 48], "counts": [2304.0]}), r"annotation 1 .*not whole numbers"),
    "not a code": (first(segmentation={"size": [48, 48], "counts": "\u00e9"}), r"annotation 1 .*can't be decoded"),
    "NaN": (first(segmentation=[[1, 2, 30, 2, float("nan"), 30]]), r"annotation 1 .*corners far outside the image"),
    "far away": (first(segmentation=[[1, 2, 1e9, 2, 30, 30]]), r"annotation 1 .*corners far outside the image"),
    "odd polygon": (first(segmentation=[[1, 2, 3, 4, 5, 6, 7]]), r"annotation 1 .*not a list of pairs"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_an_entry_that_makes_no_sense_is_refused_in_one_line_that_names_the_file(what: str, folder: Path) -> None:
    edit, message = REFUSED[what]
    helpers.change(folder, "train", edit)
    with pytest.raises(InputError, match=rf"instances_train\.json.* ?{message}") as error:
        open_folder(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("area", [{}, {"area": None}, {"area": float("nan")}, {"area": -5}])
def test_a_missing_area_is_that_of_the_mask_or_of_the_box(area: dict[str, Any], folder: Path) -> None:
    fields = {"bbox": [10, 8, 20, 12], "segmentation": [[10, 8, 30, 8, 10, 20]], "area": "none", **area}
    only(folder, **fields)
    if not area:
        helpers.change(folder, "train", lambda tree: tree["annotations"][0].pop("area"))
    images = open_folder(folder)
    covered = int(images.target(0)["masks"].sum())
    assert images.tree["annotations"][0]["area"] == covered
    assert 100 < covered < 140
    assert open_folder(folder, masks=False).tree["annotations"][0]["area"] == 240


@pytest.mark.parametrize(("stated", "turned"), [((48, 32), False), ((32, 48), True)])
def test_a_rotated_image_is_read_as_the_stated_size_says(stated: tuple[int, int], turned: bool, folder: Path) -> None:
    pixels = np.arange(32 * 48 * 3, dtype=np.uint8).reshape(32, 48, 3)
    exif = Image.Exif()
    exif[0x0112] = 6
    (folder / "own").mkdir()
    Image.fromarray(pixels).save(folder / "own" / "turned.png", exif=exif)
    entry = {"id": 50, "file_name": "turned.png", "width": stated[0], "height": stated[1]}
    helpers.change(folder, "train", lambda tree: tree.update(images=[entry], annotations=[]))
    image, _ = open_folder(folder, train_images="own").read(0)
    assert np.array_equal(np.asarray(image), np.rot90(pixels, -1) if turned else pixels)


def test_shapes_are_not_read_from_a_folder(folder: Path) -> None:
    with pytest.raises(InputError, match=r"reads no files: give --data coco:.* to train on it"):
        open_coco(DetectionData(reader="shapes", root=str(folder)), "train", masks=True)


def test_retinanet_needs_no_masks(folder: Path) -> None:
    helpers.change(folder, "train", lambda tree: [one.pop("segmentation") for one in tree["annotations"]])
    assert set(open_folder(folder, masks=False).target(0)) == {"boxes", "labels"}


def test_files_are_found_where_coco_has_them_or_where_the_recipe_says(folder: Path) -> None:
    (folder / "annotations").mkdir()
    (folder / "instances_train.json").rename(folder / "annotations" / "instances_train2017.json")
    (folder / "train").rename(folder / "train2017")
    assert open_folder(folder).read(0)[0].size == (48, 48)
    (folder / "annotations" / "instances_train2014.json").write_text("{}")
    with pytest.raises(InputError, match=r"several annotations: choose one with data\.train_annotations"):
        open_folder(folder)
    chosen = "annotations/instances_train2017.json"
    assert len(open_folder(folder, train_annotations=chosen)) == 6
    (folder / "train2017").rename(folder / "elsewhere")
    with pytest.raises(InputError, match=r"there is no .*train2017 for instances_train2017\.json"):
        open_folder(folder, train_annotations=chosen)
    assert open_folder(folder, train_annotations=chosen, train_images="elsewhere").read(0)[0].size == (48, 48)


def test_missing_and_broken_files_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        open_folder(tmp_path / "nowhere")
    (folder / "instances_train.json").write_text("{")
    with pytest.raises(InputError, match=r"instances_train\.json is not JSON"):
        open_folder(folder)
    (folder / "instances_train.json").unlink()
    with pytest.raises(InputError, match=r"nor its folder annotations/ has a file instances_train\*\.json"):
        open_folder(folder)


def test_an_image_of_another_size_than_stated_is_not_read(folder: Path) -> None:
    helpers.change(folder, "train", lambda tree: tree["images"][1].update(height=50))
    images = open_folder(folder, masks=False)
    with pytest.raises(InputError, match=r"is 48 x 48 pixels, .*instances_train\.json says 48 x 50"):
        images.read(1)


def test_the_tree_that_was_read_is_not_changed() -> None:
    from laplacianformer.detection import _shapes as shapes
    from laplacianformer.detection._checked_coco import checked_tree

    tree, _ = shapes.generate("train", 2, 48)
    before = copy.deepcopy(tree)
    checked_tree(tree, "here", masks=True)
    assert tree == before
    assert json.dumps(tree)
