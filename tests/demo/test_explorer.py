"""What the page shows, without the page."""

import dataclasses
import io

import numpy as np
import pytest
import torch
from PIL import Image

from laplacianformer import weights
from laplacianformer._util.errors import InputError
from laplacianformer.data import _images as images
from laplacianformer.demo import examples, overlays
from laplacianformer.demo.explorer import ALL_HEADS, MAPS, OWN_MAP, Explorer
from tests.helpers import CLASSES, INPUT, picture, save_small

LAYER = "stage 2, block 1"  # two heads
CENTRE = (0.5, 0.5)


@pytest.fixture(scope="module")
def explorer(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "model.safetensors"
    save_small(path)
    return Explorer(weights.load_weights(path))


@pytest.fixture(scope="module")
def analysis(explorer):
    return explorer.analyse(picture(3, (80, 60)))


def same(first, second):
    return np.array_equal(np.asarray(first), np.asarray(second))


def test_classes_are_those_of_the_model_and_change_with_lambda(explorer, analysis):
    tensor = images.to_input(explorer.loaded.input)(picture(3, (80, 60)))
    expected = explorer.model(tensor[None])[0].softmax(0)
    assert tuple(analysis.classes) == CLASSES
    assert list(analysis.classes.values()) == pytest.approx(expected.tolist(), rel=1e-5)
    assert explorer.classes_with(analysis, 4.0) == analysis.classes
    assert explorer.classes_with(analysis, 1.0) != analysis.classes
    assert sum(explorer.classes_with(analysis, 1.0).values()) == pytest.approx(1)


def test_only_the_maps_that_are_wanted_are_drawn(explorer, analysis):
    for wanted in ([], [OWN_MAP], ["softmax"], list(MAPS)):
        drawn = explorer.attention_images(analysis, LAYER, ALL_HEADS, CENTRE, 4.0, wanted)
        assert set(drawn) == set(wanted)


@pytest.mark.parametrize("name", MAPS)
def test_maps_follow_point_head_and_lambda(explorer, analysis, name):
    def drawn(head="head 1", point=CENTRE, scale=4.0):
        return explorer.attention_images(analysis, LAYER, head, point, scale, [name])[name]

    assert same(drawn(), drawn())
    assert not same(drawn(), drawn(point=(0.1, 0.9)))
    assert not same(drawn(), drawn(head="head 2"))
    assert same(drawn(), drawn(scale=0.5)) == (name == "softmax")


def test_a_head_that_a_layer_does_not_have_is_the_mean(explorer, analysis):
    both = [
        explorer.attention_images(analysis, LAYER, head, CENTRE, 4.0, [OWN_MAP])[OWN_MAP]
        for head in ("head 9", ALL_HEADS)
    ]
    assert same(*both)
    assert explorer.heads(LAYER) == [ALL_HEADS, "head 1", "head 2"]


def test_the_reddest_token_of_a_map_has_the_largest_weight():
    weights_hw = torch.full((4, 4), 0.5 / 15)
    weights_hw[2, 3] = 0.5
    drawn = overlays.with_attention(Image.new("RGB", (64, 64), "white"), weights_hw, (0, 0))
    pixels = np.asarray(drawn)[:64].astype(int)
    redness = pixels[..., 0] - pixels[..., 1]
    row, column = np.unravel_index(redness.argmax(), redness.shape)
    assert (row // 16, column // 16) == (2, 3)
    assert drawn.height > 64, "no colour bar below"


def test_the_landmarks_are_lines_between_their_cells(explorer, analysis):
    plain, marked = (explorer.marked_image(analysis, LAYER, (0, 0), landmarks=landmarks) for landmarks in (False, True))
    changed = (np.asarray(plain) != np.asarray(marked)).any(2)
    lines = [index for index in range(changed.shape[1]) if changed[:, index].all()]
    for line in range(1, 7):
        assert any(abs(index - changed.shape[1] * line / 7) <= 2 for index in lines)
    assert all(min(abs(index - changed.shape[1] * line / 7) for line in range(1, 7)) <= 3 for index in lines)


@pytest.mark.parametrize("size", [(80, 60), (50, 200), (32, 32)])
@pytest.mark.parametrize("crop", [1.0, 0.8])
def test_the_shown_image_is_what_the_model_sees(size, crop):
    taken = {**INPUT, "crop_pct": crop}
    shown = overlays.as_seen(picture(5, size), taken)
    seen = images.to_picture(images.to_input(taken)(picture(5, size)), taken)
    small = np.asarray(shown.resize((32, 32), Image.Resampling.BOX)) / 255
    assert shown.size == (448, 448)
    assert np.abs(small - seen).max() < 0.12


def test_layers_are_described(explorer, analysis):
    assert "8 x 8 tokens, 7 x 7 landmarks" in explorer.describe_layer(analysis, LAYER)


@pytest.mark.parametrize("content", [b"", b"just text", b"\x89PNG\r\n\x1a\n half an image"])
def test_what_is_no_image_is_rejected_with_a_reason(explorer, content, tmp_path):
    (tmp_path / "bad.png").write_bytes(content)
    with pytest.raises(InputError, match=r"not an image|can't be decoded"):
        explorer.analyse(tmp_path / "bad.png")


def test_images_are_read_as_elsewhere(explorer, tmp_path):
    buffer = io.BytesIO()
    transparent = Image.new("RGBA", (40, 40), (0, 0, 0, 0))
    transparent.save(buffer, "PNG")
    (tmp_path / "a.png").write_bytes(buffer.getvalue())
    assert np.asarray(explorer.analyse(tmp_path / "a.png").image).min() == 255


def test_there_is_an_image_to_begin_with_even_without_scikit_learn(explorer, monkeypatch):
    assert explorer.examples == ["drawn ship", "temple", "flower"]
    for name in explorer.examples:
        assert explorer.analyse_example(name).image.size == (448, 448)
    monkeypatch.setattr(examples, "find_spec", lambda name: None)
    assert examples.names() == ["drawn ship"]
    assert explorer.analyse_example("drawn ship").image.size == (448, 448)


def test_other_models_are_rejected(explorer):
    with pytest.raises(InputError, match=r"the page shows a LaplacianFormer, and .* holds a laplacianformer_nano"):
        Explorer(dataclasses.replace(explorer.loaded, model=torch.nn.Linear(1, 1)))
