"""`laplacianformer export --format hf`: a folder that timm loads by name, with a card that says what it is."""

import json

import pytest
import timm
import torch

from laplacianformer.cli import main
from laplacianformer.weights import load_weights
from tests.export.helpers import code_of
from tests.helpers import CLASSES, INPUT, save_small
from tests.model.helpers import images


@pytest.fixture
def file(tmp_path):
    said = {"data": "seven animals", "metrics": '{"accuracy": 0.625, "loss": 1.5}', "recipe": "epochs: 3\nseed: 1\n"}
    save_small(tmp_path / "model.safetensors", **said)
    return tmp_path / "model.safetensors"


@pytest.fixture
def folder(file, tmp_path):
    main(["export", "--weights", str(file), "--format", "hf", str(tmp_path / "new" / "animals")])
    return tmp_path / "new" / "animals"


def test_timm_loads_the_same_model_by_name(file, folder):
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert torch.equal(model(images(40)), load_weights(file).model(images(40)))
    assert model.pretrained_cfg["label_names"] == list(CLASSES)
    config = timm.data.resolve_model_data_config(model)
    assert [list(config["mean"]), list(config["std"])] == [INPUT["mean"], INPUT["std"]]
    assert list(config["input_size"]) == INPUT["size"]


def test_the_card_states_data_metrics_and_limits(folder):
    text = (folder / "README.md").read_text()
    assert text.startswith("---\ntags:\n- image-classification\n")
    for part in ("seven animals", "accuracy: 62.5 %", "loss: 1.5", "zebra, ant, cat", "epochs: 3", "not calibrated"):
        assert part in text
    assert 'timm.create_model("local-dir:animals"' in text
    assert json.loads((folder / "config.json").read_text())["architecture"] == "laplacianformer_nano"


def test_an_existing_folder_is_left_alone(file, folder, capsys):
    (folder / "README.md").write_text("mine")
    assert code_of(["export", "--weights", str(file), "--format", "hf", str(folder)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (folder / "README.md").read_text() == "mine"


def test_a_failure_leaves_nothing(file, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("stop")

    monkeypatch.setattr("laplacianformer.export._card.card", fail)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RuntimeError, match="stop"):
        main(["export", "--weights", str(file), "--format", "hf", str(tmp_path / "animals")])
    assert sorted(tmp_path.rglob("*")) == before
