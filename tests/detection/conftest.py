"""A small COCO data set that tests may edit."""

from pathlib import Path

import pytest

from tests.detection import helpers


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return helpers.coco_folder(tmp_path_factory.mktemp("coco") / "data", train=6, val=2)


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """Images are shared between tests, annotations may be edited."""
    for split in ("train", "val"):
        (tmp_path / split).symlink_to(original / split)
        (tmp_path / f"instances_{split}.json").write_text((original / f"instances_{split}.json").read_text())
    return tmp_path
