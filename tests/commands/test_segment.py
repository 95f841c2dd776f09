"""`laplacianformer segment`: overlays, label maps and JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from laplacianformer._util.errors import InputError
from laplacianformer.cli import main
from laplacianformer.segmentation import (
    IGNORED,
    Labels,
    labels_of,
    overlay,
    save_label_map,
    save_segmenter,
    with_legend,
)
from laplacianformer.segmentation._pictures import fractions
from tests.helpers import picture
from tests.segmentation import helpers

TREE = {"ignore": 9, "classes": [{"name": name, "value": 10 * index} for index, name in enumerate(helpers.CLASSES)]}


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("segment") / "model.safetensors"
    save_segmenter(path, helpers.small(), labels=labels_of(TREE, "it"))
    return path


def labels() -> Labels:
    return labels_of(TREE, "it")


def test_each_image_is_drawn_and_gets_a_label_map_in_the_values_of_the_data(
    segmenter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        picture(1, (60, 44)).save(tmp_path / folder / "same.png")
    main(
        [
            "segment",
            "--weights",
            str(segmenter),
            str(tmp_path / "a"),
            str(tmp_path / "b"),
            "--output",
            str(tmp_path / "o"),
        ]
    )
    said = json.loads((tmp_path / "o" / "segmentation.json").read_text())
    assert [Path(entry["drawn"]).name for entry in said["images"]] == ["same.png", "same-2.png"]
    for entry in said["images"]:
        with Image.open(entry["labels"]) as stored:
            values = np.asarray(stored)
            assert (stored.mode, stored.size) == ("P", (60, 44))
        assert set(np.unique(values)) <= {0, 10, 20}
        assert sum(entry["classes"].values()) == pytest.approx(1)
        assert entry["classes"].get("tree", 0) == pytest.approx((values == 10).mean())
        with Image.open(entry["drawn"]) as drawn:
            assert drawn.height > 44, "with a legend"
    assert [entry["value"] for entry in said["weights"]["classes"]] == [0, 10, 20]
    assert "drawn in" in capsys.readouterr().out


def test_unreadable_images_are_named_and_the_others_are_drawn(
    segmenter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture(1).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"not an image")
    given = ["segment", "--weights", str(segmenter), "--output", str(tmp_path / "o"), "--window", "16"]
    for images, code in ((["good.png", "bad.png"], 1), (["bad.png"], 2)):
        with pytest.raises(SystemExit) as stop:
            main([*given, *(str(tmp_path / name) for name in images)])
        assert stop.value.code == code
        assert "bad.png: not an image" in capsys.readouterr().err


def test_bfloat16_rounds_and_finds_nearly_the_same_classes(segmenter: Path, tmp_path: Path) -> None:
    """Also that the block of the precision is left: what follows is float32 again."""
    picture(1, (90, 60)).save(tmp_path / "one.png")
    computed: list[Tensor] = []
    maps = []
    for run, precision in enumerate(("float32", "bfloat16", "float32")):
        output = tmp_path / str(run)
        given = ["segment", "--weights", str(segmenter), str(tmp_path / "one.png"), "--output", str(output)]
        with torch.nn.modules.module.register_module_forward_hook(recorder(computed)):
            main([*given, "--precision", precision])
        with Image.open(output / "one-labels.png") as stored:
            maps.append(np.asarray(stored))
        assert {out.dtype for out in computed} == {getattr(torch, precision)}
        computed.clear()
    assert np.array_equal(maps[0], maps[2])
    assert (maps[0] == maps[1]).mean() > 0.9


def recorder(computed: list[Tensor]) -> Callable[..., None]:
    """A hook that keeps what convolutions give."""

    def record(module: torch.nn.Module, _: Any, out: Tensor) -> None:
        if isinstance(module, torch.nn.Conv2d):
            computed.append(out)

    return record


def test_other_weights_are_refused_with_the_command_that_takes_them(
    segmenter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["detect", "--weights", str(segmenter), "x.png"])
    assert stop.value.code == 2
    assert "holds a segmenter: expected a detector; laplacianformer segment and eval take it" in capsys.readouterr().err


# ---- pictures ----


def test_colours_cover_the_image_except_where_it_is_ignored() -> None:
    image, indices = Image.new("RGB", (4, 2), (100, 100, 100)), np.array([[0, 1, 2, IGNORED]] * 2, dtype=np.uint8)
    pixels = np.asarray(overlay(image, indices, labels(), opacity=1.0))
    assert [tuple(pixel) for pixel in pixels[0, :3]] == list(labels().colours)
    assert pixels[0, 3].tolist() == [100, 100, 100]
    half = np.asarray(overlay(image, indices, labels(), opacity=0.5))
    assert half[0, 0].tolist() == pytest.approx([50 + colour / 2 for colour in labels().colours[0]], abs=1)


def test_the_legend_has_the_classes_that_are_there() -> None:
    indices = np.zeros((40, 400), dtype=np.uint8)
    indices[:, :100] = 2
    covered = fractions(indices, labels())
    assert covered == {"ground": 0.75, "house": 0.25}
    image = Image.new("RGB", (400, 40))
    drawn = np.asarray(with_legend(image, covered, labels()))
    below = {tuple(pixel) for pixel in drawn[40:].reshape(-1, 3).tolist()}
    assert {labels().colours[0], labels().colours[2]} <= below
    assert labels().colours[1] not in below
    assert with_legend(image, {}, labels()).size == image.size


def test_label_maps_of_large_values_have_16_bits(tmp_path: Path) -> None:
    wide = labels_of({"classes": ["a", {"name": "b", "value": 1000}]}, "it")
    indices = np.array([[0, 1]], dtype=np.uint8)
    save_label_map(indices, wide, tmp_path / "labels.png")
    with Image.open(tmp_path / "labels.png") as stored:
        assert np.array_equal(wide.indices(np.asarray(stored)), indices)


def test_ignored_pixels_are_written_as_an_ignored_value(tmp_path: Path) -> None:
    indices = np.array([[0, IGNORED]], dtype=np.uint8)
    ignoring = labels_of({"ignore": [9, 7], "classes": ["a"]}, "it")
    save_label_map(indices, ignoring, tmp_path / "labels.png")
    with Image.open(tmp_path / "labels.png") as stored:
        assert np.asarray(stored).tolist() == [[0, 9]]
        assert np.array_equal(ignoring.indices(np.asarray(stored)), indices)
    with pytest.raises(InputError, match="some pixels are ignored, and these labels have no value for them"):
        save_label_map(indices, labels_of({"classes": ["a"]}, "it"), tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()
