"""The page for a segmenter: what it computes, and that its events give what is shown."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from laplacianformer._util.errors import InputError
from laplacianformer.demo.painter import MOST_SIDE, Painter
from laplacianformer.segmentation import load_segmenter, save_segmenter, segment
from tests.demo.conftest import start
from tests.helpers import picture
from tests.segmentation import helpers


@pytest.fixture(scope="module")
def painter(tmp_path_factory: pytest.TempPathFactory) -> Painter:
    path = tmp_path_factory.mktemp("painter") / "model.safetensors"
    save_segmenter(path, helpers.small(), labels=["<b>ground</b>", "tree", "house"])
    return Painter(load_segmenter(path))


def test_the_classes_are_those_of_the_command(painter: Painter, tmp_path: Path) -> None:
    picture(2, (70, 50)).save(tmp_path / "image.png")
    painted = painter.paint_upload(tmp_path / "image.png")
    (found,) = segment(painter.loaded, [str(tmp_path / "image.png")])
    assert found.classes is not None
    assert np.array_equal(painted.classes, found.classes)
    assert sum(painted.covered.values()) == pytest.approx(1)
    assert np.array_equal(np.asarray(painter.drawn(painted, 0.0))[:50, :70], np.asarray(painted.image))


def test_large_images_are_made_smaller_and_others_refused(painter: Painter, tmp_path: Path) -> None:
    Image.new("RGB", (2 * MOST_SIDE, 64)).save(tmp_path / "wide.png")
    assert painter.paint_upload(tmp_path / "wide.png").image.size == (MOST_SIDE, 32)
    (tmp_path / "bad.png").write_bytes(b"no image at all")
    with pytest.raises(InputError, match="not an image"):
        painter.paint_upload(tmp_path / "bad.png")
    Image.new("1", (6000, 6000)).save(tmp_path / "many.png")
    with pytest.raises(InputError, match="more than 25 million"):
        painter.paint_upload(tmp_path / "many.png")


@pytest.mark.slow
def test_the_page_shows_a_segmenter_and_rejects_what_is_no_image(tmp_path: Path) -> None:
    pytest.importorskip("gradio", reason="the page needs gradio: pip install 'laplacianformer[page]'")
    httpx = pytest.importorskip("httpx")
    running = start(
        tmp_path, lambda path: save_segmenter(path, helpers.small(), labels=["<b>ground</b>", "tree", "house"])
    )
    try:
        running.wait()
        with httpx.Client(base_url=running.address, trust_env=False, timeout=60) as client:
            page = client.get("").raise_for_status().text
            assert "the class of every pixel" in page
            assert "<b>ground" not in page
            picture(2, (70, 50)).save(tmp_path / "good.png")
            (tmp_path / "bad.png").write_bytes(b"no image at all")
            assert opened(client, tmp_path / "good.png") == ""
            assert "This file was rejected" in opened(client, tmp_path / "bad.png")
    finally:
        running.end()
    assert not list((tmp_path / "temporary").iterdir()), "nothing stays behind"


def opened(client: Any, path: Path) -> str:
    """The message that the page shows after an upload."""
    with path.open("rb") as file:
        uploaded = client.post("gradio_api/upload", files={"files": file}).raise_for_status().json()[0]
    file = {"path": uploaded, "meta": {"_type": "gradio.FileData"}}
    event = client.post("gradio_api/call/open", json={"data": [file]}).raise_for_status().json()["event_id"]
    kind, data = client.get(f"gradio_api/call/open/{event}").text.strip().splitlines()[-2:]
    assert kind == "event: complete", data
    return str(json.loads(data.removeprefix("data: "))[1])
