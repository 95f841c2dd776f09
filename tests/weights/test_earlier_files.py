"""Weights files of format 1, from when the default gain was 1, give the outputs that they gave then."""

import json
from pathlib import Path

import pytest
import torch

from laplacianformer import load_weights, save_weights
from laplacianformer._util.tensor_files import read_tensors, write_tensors
from laplacianformer.attention import LaplacianAttention
from laplacianformer.weights._file import FORMAT, with_defaults_of_file
from tests.helpers import CLASSES, small_model
from tests.model.helpers import images


def as_format_1(path: Path, arguments: str = "", *, settings: bool) -> None:
    """The file that the same weights had: its arguments do not name the gain, its layers may not state theirs."""
    tensors, metadata = read_tensors(path)
    stated = json.loads(metadata["model_args"])
    (stated[arguments] if arguments else stated).pop("attention_args")
    kept = {name: tensor for name, tensor in tensors.items() if settings or not name.endswith("_extra_state")}
    write_tensors(path, kept, {**metadata, "format": "laplacianformer 1", "model_args": json.dumps(stated)})


@pytest.mark.parametrize("settings", [True, False], ids=["with settings", "without"])
def test_a_classifier_keeps_its_gain_of_one(tmp_path, settings) -> None:
    path, model = tmp_path / "model.safetensors", small_model(attention_args={"gain": 1.0})
    save_weights(path, model, classes=CLASSES, metadata={})
    as_format_1(path, settings=settings)
    loaded = load_weights(path).model
    x = images(32)
    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))
        assert not torch.equal(loaded(x), small_model()(x))
    again = tmp_path / "again.safetensors"
    save_weights(again, loaded, classes=CLASSES, metadata={})
    with torch.no_grad():
        assert torch.equal(load_weights(again).model(x), model(x))


def test_a_sequence_encoder_keeps_its_gain_of_one(tmp_path) -> None:
    pytest.importorskip("lightning")
    from laplacianformer.sequences import SequenceEncoder, load_encoder, save_encoder

    torch.manual_seed(0)
    path, model = tmp_path / "model.safetensors", SequenceEncoder(256, 20, 2, landmarks=8, attention_args={"gain": 1.0})
    save_encoder(path, model.eval(), sequence="pathfinder", classes=["no", "yes"])
    as_format_1(path, settings=True)
    tokens = torch.randint(0, 256, (2, 20))
    with torch.no_grad():
        assert torch.equal(load_encoder(path).model(tokens), model(tokens))


def test_a_detector_keeps_its_gain_of_one(tmp_path) -> None:
    pytest.importorskip("torchvision")
    from laplacianformer.detection import load_detector, save_detector
    from tests.detection.helpers import BACKBONE, small

    path = tmp_path / "model.safetensors"
    model = small("retinanet", backbone_args={**BACKBONE, "attention_args": {"gain": 1.0}}).eval()
    save_detector(path, model, classes=["a", "b", "c"])
    as_format_1(path, "backbone_args", settings=True)
    x = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        found, expected = (each.backbone(x) for each in (load_detector(path).model, model))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_new_files_have_the_new_default_and_other_models_are_left_alone(tmp_path) -> None:
    path = tmp_path / "model.safetensors"
    save_weights(path, small_model(), classes=CLASSES, metadata={})
    loaded = load_weights(path)
    gains = [layer.gain for layer in loaded.model.modules() if isinstance(layer, LaplacianAttention)]
    assert loaded.metadata["format"] == FORMAT != "laplacianformer 1"
    assert set(gains) == {"auto"}
    old = {"format": "laplacianformer 1"}
    for arguments in ({"attention": "softmax"}, {"attention_args": {"gain": 3.0}}):
        assert with_defaults_of_file(old, arguments) == arguments
    assert with_defaults_of_file({"format": FORMAT}, {}) == {}
