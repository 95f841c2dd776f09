"""Figures of predictions and of the confusion matrix."""

import numpy as np
import pytest
import torch

from laplacianformer.classification._pictures import draw_confusion, draw_predictions
from tests.helpers import CLASSES, picture
from tests.plots.helpers import check_png, saved_figures


@pytest.fixture
def drawn(monkeypatch):
    return saved_figures(monkeypatch)


@pytest.mark.parametrize("count", [1, 3, 9])
def test_predictions_say_which_are_wrong(tmp_path, drawn, count):
    truth = [number % 7 for number in range(count)]
    predicted = [number if number != 2 else 5 for number in truth]
    probabilities = torch.nn.functional.one_hot(torch.tensor(predicted), 7).numpy() * 0.8 + 0.2 / 7
    shown = [np.asarray(picture(number)) / 255 for number in range(count)]
    draw_predictions(shown, predicted, probabilities, truth, CLASSES, tmp_path / "sheet.png", title="some")
    check_png(tmp_path / "sheet.png")
    titles = [axis.get_title() for axis in drawn[0].get_axes() if axis.get_title()]
    assert sorted(titles) == sorted("fox, is cat" if number == 2 else CLASSES[number] for number in truth)


@pytest.mark.parametrize("classes", [["a", "b"], list(CLASSES), [f"class {n}" for n in range(100)]], ids=len)
def test_a_confusion_matrix_shows_counts_where_there_is_room(tmp_path, drawn, classes):
    counts = np.diag(np.full(len(classes), 11))
    counts[0, 1] = 3
    draw_confusion(counts.tolist(), classes, tmp_path / "confusion.png")
    check_png(tmp_path / "confusion.png")
    (axis, _) = drawn[0].get_axes()
    texts = [text.get_text() for text in axis.texts]
    assert texts == ([] if len(classes) == 100 else ["11", "3", *["11"] * (len(classes) - 1)])
    assert axis.images[0].get_array()[0, 1] == pytest.approx(100 * 3 / 14)


def test_a_class_without_images_and_names_that_look_like_mathematics_can_be_drawn(tmp_path):
    draw_confusion([[0, 0], [0, 0]], ["$\\frac$", "a$b_$"], tmp_path / "confusion.png")
    draw_predictions([np.zeros((2, 2, 3))], [0], np.eye(2)[:1], [1], ["$\\q$", "$"], tmp_path / "predictions.png")
    for name in ("confusion.png", "predictions.png"):
        assert (tmp_path / name).stat().st_size > 1000
