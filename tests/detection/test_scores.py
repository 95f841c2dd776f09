"""COCO's numbers: 100 for the truth, and those of pycocotools for anything else."""

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from laplacianformer.detection._coco import CocoImages, open_coco
from laplacianformer.detection._recipe import DetectionData
from laplacianformer.detection._scores import NUMBERS, as_results, coco_scores
from tests.detection import helpers

SIDE = 160  # large enough for objects of all three sizes


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> CocoImages:
    """Shapes of 160 pixels with gaps in the category ids; a fifth of the objects are crowds."""
    root: Path = helpers.coco_folder(tmp_path_factory.mktemp("scores") / "data", train=1, val=14, size=SIDE)

    def edit(tree: dict[str, Any]) -> None:
        for entry in (*tree["categories"], *tree["annotations"]):
            key = "category_id" if "category_id" in entry else "id"
            entry[key] = 10 * entry[key] + 1
        for one in tree["annotations"][::5]:
            one["iscrowd"] = 1

    helpers.change(root, "val", edit)
    return open_coco(DetectionData(root=str(root)), "val", masks=True)


def truth(images: CocoImages, index: int) -> dict[str, torch.Tensor]:
    target = images.target(index)
    return {**target, "masks": target["masks"].bool(), "scores": torch.ones(len(target["boxes"]))}


def disturbed(images: CocoImages, index: int) -> dict[str, torch.Tensor]:
    """The truth with boxes and masks moved, some labels wrong, objects missed, invented and found twice."""
    chance = torch.Generator().manual_seed(index)
    found = truth(images, index)
    twice = torch.cat([torch.arange(len(found["boxes"])), torch.arange(len(found["boxes"]))[::2]])
    moved = (3 * torch.randn(len(twice), 2, generator=chance)).round()
    boxes = (found["boxes"][twice] + moved.repeat(1, 2)).clamp(0, SIDE)
    masks = torch.stack(
        [mask.roll((int(dy), int(dx)), (0, 1)) for mask, (dx, dy) in zip(found["masks"][twice], moved, strict=True)]
        or [torch.zeros(SIDE, SIDE, dtype=torch.bool)][:0]
        or [torch.zeros(SIDE, SIDE)]
    )[: len(twice)].bool()
    wrong = torch.rand(len(twice), generator=chance) < 0.2
    labels = torch.where(wrong, found["labels"][twice] % 5 + 1, found["labels"][twice])
    scores = torch.rand(len(twice), generator=chance)
    kept = scores > 0.1
    return {"boxes": boxes[kept], "labels": labels[kept], "scores": scores[kept], "masks": masks[kept]}


def results(images: CocoImages, found: Any) -> list[dict[str, Any]]:
    return [entry for index in range(len(images)) for entry in as_results(images, index, found(images, index))]


def test_the_truth_scores_100(images: CocoImages) -> None:
    scores = coco_scores(images, results(images, truth))
    for kind in ("box", "mask"):
        assert [scores[kind][name] for name in ("AP", "AP50", "AP75", "AR100")] == [pytest.approx(100)] * 4
        assert scores[kind]["AP_small"] == pytest.approx(100)
        assert scores[kind]["AP_medium"] == pytest.approx(100)


def test_nothing_found_scores_0_and_sizes_that_do_not_occur_have_no_number(images: CocoImages) -> None:
    scores = coco_scores(images, [])
    assert scores["box"]["AP"] == scores["mask"]["AR100"] == 0
    assert scores["box"]["AP_large"] is None


def alone(images: CocoImages, found: Any, kind: str) -> list[float]:
    """The numbers of pycocotools, from the annotations of the file and results that are built here."""
    from pycocotools import mask as masks
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    listed = []
    for index, entry in enumerate(images.entries):
        prediction = found(images, index)
        for box, label, score, mask in zip(
            *(prediction[key] for key in ("boxes", "labels", "scores", "masks")), strict=True
        ):
            x0, y0, x1, y1 = box.tolist()
            result = {"image_id": entry["id"], "category_id": 10 * int(label) + 1, "score": float(score)}
            if kind == "bbox":
                result["bbox"] = [x0, y0, x1 - x0, y1 - y0]
            else:
                coded = masks.encode(np.asfortranarray(mask.numpy().astype(np.uint8)))
                result["segmentation"] = {"size": coded["size"], "counts": coded["counts"].decode()}
            listed.append(result)
    with contextlib.redirect_stdout(io.StringIO()):
        given = COCO(images.source)
        evaluation = COCOeval(given, given.loadRes(listed), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [100 * float(value) for value in evaluation.stats]


def test_the_numbers_are_those_of_pycocotools_alone(images: CocoImages) -> None:
    """With crowds, gaps in the category ids, duplicates, misses and wrong labels."""
    ours = coco_scores(images, results(images, disturbed))
    for kind, name in (("bbox", "box"), ("segm", "mask")):
        expected = alone(images, disturbed, kind)
        found = [-100 if ours[name][number] is None else ours[name][number] for number in NUMBERS]
        assert found == pytest.approx(expected, abs=1e-6)
        assert 5 < expected[0] < 95, "neither nothing nor all is right"


def test_unreadable_images_do_not_count(images: CocoImages) -> None:
    """An image without results lowers the score; one that could not be read doesn't."""
    most = max(range(len(images)), key=lambda index: len(images.target(index)["boxes"]))
    rest = [entry for entry in results(images, truth) if entry["image_id"] != images.entries[most]["id"]]
    assert coco_scores(images, rest)["box"]["AR100"] < 100
    assert coco_scores(images, rest, [most])["box"]["AR100"] == pytest.approx(100)
