"""Predictions of classifiers, as a library: `laplacianformer predict` is in commands/test_predict.py."""

import pytest
import torch

from laplacianformer.classification import _inference as inference
from laplacianformer.classification._inference import attention_rows, predict
from laplacianformer.data import _images as images
from laplacianformer.inspect import token_attention
from laplacianformer.weights import load_weights
from tests.helpers import INPUT, picture, save_small


@pytest.fixture
def loaded(tmp_path):
    save_small(tmp_path / "model.safetensors")
    return load_weights(tmp_path / "model.safetensors")


@pytest.fixture
def names(tmp_path):
    """Three images and, between them, a file that is none."""
    for number in range(3):
        picture(number).save(tmp_path / f"{number}.png")
    (tmp_path / "1b.png").write_bytes(b"broken")
    return [str(tmp_path / name) for name in ("0.png", "1.png", "1b.png", "2.png")]


def test_predictions_come_in_order_and_a_broken_file_has_a_reason(loaded, names):
    found = list(predict(loaded, names, top=2, device="cpu"))
    assert [str(prediction.path) for prediction in found] == names
    assert [len(prediction.ranking) for prediction in found] == [2, 2, 0, 2]
    assert [bool(prediction.failure) for prediction in found] == [False, False, True, False]
    assert all(prediction.model_input is None for prediction in found)


def test_large_images_are_in_smaller_batches(loaded, names, monkeypatch):
    sizes = []
    monkeypatch.setattr(inference, "_BATCH_PIXELS", 2 * 32 * 32 + 1)
    loaded.model.register_forward_pre_hook(lambda model, given: sizes.append(len(given[0])))
    assert len(list(predict(loaded, names, device="cpu"))) == 4
    assert sizes == [2, 1]
    monkeypatch.setattr(inference, "_BATCH_PIXELS", 1)
    sizes.clear()
    assert len(list(predict(loaded, names, device="cpu"))) == 4
    assert sizes == [1, 1, 1]


def test_as_many_inputs_are_kept_as_were_asked_for(loaded, names):
    found = list(predict(loaded, names, device="cpu", keep_inputs=2))
    assert [prediction.model_input is not None for prediction in found] == [True, True, False, False]
    assert torch.equal(found[1].model_input, images.to_input(INPUT)(picture(1)))


def test_rows_of_the_figure_are_the_kept_images_with_their_attention(loaded, names):
    rows = attention_rows(loaded, predict(loaded, names, device="cpu", keep_inputs=2), (0.2, 0.9))
    assert [row.title.split("\n")[0] for row in rows] == ["0.png", "1.png"]
    expected = token_attention(loaded.model, images.to_input(INPUT)(picture(1)), (0.2, 0.9))
    for found, wanted in zip(rows[1].stages, expected, strict=True):
        assert (found.stage, found.query) == (wanted.stage, wanted.query)
        assert torch.equal(found.weights, wanted.weights)
