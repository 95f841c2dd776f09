"""What is drawn and answered on the page, without a page."""

import dataclasses
import importlib.util
import io
import socket

import numpy as np
import pytest
import torch
from PIL import Image

from laplacianformer import weights
from laplacianformer._util.errors import InputError
from laplacianformer.cli import main
from laplacianformer.commands import demo as command
from laplacianformer.data import images
from laplacianformer.demo import drawing
from laplacianformer.demo.answers import ALL_HEADS, MAPS, OWN, Answers
from tests.helpers import CLASSES, INPUT, picture, save_small

LAYER = "stage 2, block 1"  # two heads
CENTRE = (0.5, 0.5)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "model.safetensors"
    save_small(path)
    return Answers(weights.load_weights(path))


@pytest.fixture(scope="module")
def looked(answers):
    return answers.look(picture(3, (80, 60)))


def same(first, second):
    return np.array_equal(np.asarray(first), np.asarray(second))


def test_classes_are_those_of_the_model_and_change_with_lambda(answers, looked):
    tensor = images.to_input(answers.loaded.input)(picture(3, (80, 60)))
    expected = answers.model(tensor[None])[0].softmax(0)
    assert tuple(looked.classes) == CLASSES
    assert list(looked.classes.values()) == pytest.approx(expected.tolist(), rel=1e-5)
    assert answers.classes_with(looked, 4.0) == looked.classes
    assert answers.classes_with(looked, 1.0) != looked.classes
    assert sum(answers.classes_with(looked, 1.0).values()) == pytest.approx(1)


def test_only_the_maps_that_are_wanted_are_drawn(answers, looked):
    for wanted in ([], [OWN], ["softmax"], list(MAPS)):
        drawn = answers.maps(looked, LAYER, ALL_HEADS, CENTRE, 4.0, wanted)
        assert set(drawn) == set(wanted)


@pytest.mark.parametrize("name", MAPS)
def test_maps_follow_place_head_and_lambda(answers, looked, name):
    def drawn(head="head 1", place=CENTRE, scale=4.0):
        return answers.maps(looked, LAYER, head, place, scale, [name])[name]

    assert same(drawn(), drawn())
    assert not same(drawn(), drawn(place=(0.1, 0.9)))
    assert not same(drawn(), drawn(head="head 2"))
    assert same(drawn(), drawn(scale=0.5)) == (name == "softmax")


def test_a_head_that_a_layer_does_not_have_is_the_mean(answers, looked):
    both = [answers.maps(looked, LAYER, head, CENTRE, 4.0, [OWN])[OWN] for head in ("head 9", ALL_HEADS)]
    assert same(*both)
    assert answers.heads(LAYER) == [ALL_HEADS, "head 1", "head 2"]


def test_the_reddest_place_of_a_map_is_the_token_with_the_most_weight():
    weights_hw = torch.full((4, 4), 0.5 / 15)
    weights_hw[2, 3] = 0.5
    drawn = drawing.over(Image.new("RGB", (64, 64), "white"), weights_hw, (0, 0))
    pixels = np.asarray(drawn)[:64].astype(int)
    redness = pixels[..., 0] - pixels[..., 1]
    row, column = np.unravel_index(redness.argmax(), redness.shape)
    assert (row // 16, column // 16) == (2, 3)
    assert drawn.height > 64, "no scale below"


def test_the_landmarks_are_lines_between_their_cells(answers, looked):
    plain, marked = (answers.marked(looked, LAYER, (0, 0), landmarks) for landmarks in (False, True))
    changed = (np.asarray(plain) != np.asarray(marked)).any(2)
    lines = [index for index in range(changed.shape[1]) if changed[:, index].all()]
    for line in range(1, 7):
        assert any(abs(index - changed.shape[1] * line / 7) <= 2 for index in lines)
    assert all(min(abs(index - changed.shape[1] * line / 7) for line in range(1, 7)) <= 3 for index in lines)


@pytest.mark.parametrize("size", [(80, 60), (50, 200), (32, 32)])
@pytest.mark.parametrize("crop", [1.0, 0.8])
def test_the_shown_picture_covers_what_the_model_takes(size, crop):
    taken = {**INPUT, "crop_pct": crop}
    shown = drawing.as_seen(picture(5, size), taken)
    seen = images.to_picture(images.to_input(taken)(picture(5, size)), taken)
    small = np.asarray(shown.resize((32, 32), Image.Resampling.BOX)) / 255
    assert shown.size == (448, 448)
    assert np.abs(small - seen).max() < 0.12


def test_layers_are_described(answers, looked):
    assert "8 x 8 tokens, 7 x 7 landmarks" in answers.about(looked, LAYER)


@pytest.mark.parametrize("content", [b"", b"just text", b"\x89PNG\r\n\x1a\n half a picture"])
def test_what_is_no_picture_is_refused_with_a_reason(answers, content, tmp_path):
    (tmp_path / "bad.png").write_bytes(content)
    with pytest.raises(InputError, match=r"not an image|can't be decoded"):
        answers.look(tmp_path / "bad.png")


def test_pictures_are_read_as_elsewhere(answers, tmp_path):
    buffer = io.BytesIO()
    transparent = Image.new("RGBA", (40, 40), (0, 0, 0, 0))
    transparent.save(buffer, "PNG")
    (tmp_path / "a.png").write_bytes(buffer.getvalue())
    assert np.asarray(answers.look(tmp_path / "a.png").picture).min() == 255


def test_there_is_a_picture_to_begin_with_also_without_scikit_learn(answers, monkeypatch):
    assert list(answers.examples) == ["drawn ship", "temple", "flower"]
    for name in answers.examples:
        assert answers.look_at_example(name).picture.size == (448, 448)
    monkeypatch.setattr(drawing, "find_spec", lambda name: None)
    assert drawing.examples() == {"drawn ship": None}


def test_other_models_are_refused(answers):
    with pytest.raises(InputError, match=r"the page shows a LaplacianFormer, and .* holds a laplacianformer_nano"):
        Answers(dataclasses.replace(answers.loaded, model=torch.nn.Linear(1, 1)))


# ---- the command, where it can't start ----


def code_of(arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return stop.value.code


def test_without_gradio_one_line_says_how_to_install_it(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(command, "find_spec", lambda name: find("there_is_no_gradio" if name == "gradio" else name))
    assert code_of(["demo"]) == 2
    said = "laplacianformer demo: the page is made with gradio: pip install 'laplacianformer[page]'\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("port", ["0", "65536", "x"])
def test_a_wrong_port_is_named(port, capsys):
    assert code_of(["demo", "--port", port]) == 2
    assert f"got '{port}'" in capsys.readouterr().err


def test_a_port_in_use_is_named(monkeypatch, capsys):
    monkeypatch.setattr(command, "find_spec", lambda name: True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert code_of(["demo", "--port", str(port)]) == 2
    said = f"laplacianformer demo: the port {port} can't be used (Address already in use): pass another with --port\n"
    assert capsys.readouterr().err == said
