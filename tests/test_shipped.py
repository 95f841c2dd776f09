"""The weights inside the package: used where none are given, and by timm's pretrained=True."""

import json
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest
import timm
import torch
import yaml

from laplacianformer import assets as shipped
from laplacianformer import weights
from laplacianformer._util.tensor_files import write_tensors
from laplacianformer.cli import main
from laplacianformer.weights._description import metrics, origin
from tests.helpers import picture
from tests.model.helpers import create, images, perturbed

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
INPUT = {"size": [3, 32, 32], "mean": [0.4] * 3, "std": [0.2] * 3, "interpolation": "bicubic", "crop_pct": 1.0}
SAID = {"data": "CIFAR-10", "metrics": '{"accuracy": 0.876}', "commit": "0123456789abcdef", "input": json.dumps(INPUT)}


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A file like that of a release, used instead of it."""
    model = perturbed(create(num_classes=10, attention_args={"grid": 4}))
    path = tmp_path / "cifar10_nano.safetensors"
    weights.save_weights(path, model, classes=CIFAR10, metadata=SAID, dtype=torch.float16)
    monkeypatch.setattr(shipped, "PATH", path)
    return weights.load_weights(path)


@pytest.fixture
def data(tmp_path):
    for number, name in enumerate(CIFAR10):
        (tmp_path / "data" / name).mkdir(parents=True)
        picture(number).save(tmp_path / "data" / name / "0.png")
    return tmp_path / "data"


def commands(data, tmp_path):
    return {
        "predict": ["predict", str(data), "--json"],
        "eval": ["eval", "--data", str(data), "--output", str(tmp_path / "out"), "--workers", "0"],
    }


@pytest.mark.parametrize("command", ["predict", "eval"])
def test_a_command_without_weights_uses_them_and_says_what_they_are(stand_in, data, tmp_path, capsys, command):
    main(commands(data, tmp_path)[command])
    captured = capsys.readouterr()
    said = "laplacianformer_nano trained on CIFAR-10, accuracy 87.6 %, commit 0123456789ab"
    assert captured.err == f"cifar10_nano.safetensors: {said}\n"
    if command == "predict":
        found = json.loads(captured.out)
        assert found["weights"]["shipped"]
        assert len(found["predictions"]) == 10
    else:
        assert json.loads((tmp_path / "out" / "eval.json").read_text())["images"] == 10


@pytest.mark.parametrize("command", ["predict", "eval"])
def test_an_installation_without_weights_says_so(data, tmp_path, monkeypatch, capsys, command):
    monkeypatch.setattr(shipped, "PATH", tmp_path / "cifar10_nano.safetensors")
    with pytest.raises(SystemExit) as stop:
        main(commands(data, tmp_path)[command])
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"laplacianformer {command}: this installation has no weights of its own")
    assert (captured.err.count("\n"), captured.out) == (1, "")
    with pytest.raises(RuntimeError, match="No pretrained weights exist for laplacianformer_nano"):
        timm.create_model("laplacianformer_nano", pretrained=True)


def test_timm_loads_them_as_pretrained(stand_in):
    expected = stand_in.model(images(32))
    for arguments in ({}, {"num_classes": 10}):
        model = timm.create_model("laplacianformer_nano", pretrained=True, **arguments).eval()
        assert torch.equal(model(images(32)), expected)
    config = timm.data.resolve_model_data_config(model)
    assert (list(config["mean"]), config["input_size"]) == (INPUT["mean"], (3, 32, 32))

    other = timm.create_model("laplacianformer_nano", pretrained=True, num_classes=3)
    assert other.num_classes == 3
    assert torch.equal(other.norm.weight, stand_in.model.norm.weight)
    features = timm.create_model("laplacianformer_nano", pretrained=True, features_only=True).eval()
    for found, wanted in zip(
        features(images(32)), stand_in.model.forward_intermediates(images(32), intermediates_only=True), strict=True
    ):
        assert torch.equal(found, wanted)


def test_pretrained_weights_are_refused_by_a_model_of_other_settings(stand_in):
    """Also where their file, as that of the release, has no settings but in its arguments."""
    for old in (False, True):
        if old:
            tensors = {
                name: tensor
                for name, tensor in stand_in.model.state_dict().items()
                if not name.endswith("_extra_state")
            }
            write_tensors(shipped.PATH, tensors, stand_in.metadata)
        for changed in ({"grid": 4, "gain": 2.0}, {"grid": 4, "scale": 2.0}, {"grid": 4, "iterations": 9}):
            with pytest.raises(RuntimeError, match="the weights were made with"):
                timm.create_model("laplacianformer_nano", pretrained=True, attention_args=changed)
        model = timm.create_model("laplacianformer_nano", pretrained=True, attention_args={"grid": 4}).eval()
        assert torch.allclose(model(images(32)), stand_in.model(images(32)))


def test_other_models_are_not_affected(stand_in, tmp_path):
    assert timm.create_model("laplacianformer_nano").num_classes == 1000
    with pytest.raises(RuntimeError, match="No pretrained weights exist for laplacianformer_tiny"):
        timm.create_model("laplacianformer_tiny", pretrained=True)
    mine = perturbed(create(num_classes=10, seed=5))
    torch.save(mine.state_dict(), tmp_path / "mine.pth")
    overlay = {"file": str(tmp_path / "mine.pth"), "num_classes": 10}
    loaded = timm.create_model("laplacianformer_nano", pretrained=True, pretrained_cfg_overlay=overlay).eval()
    assert torch.equal(loaded(images(32)), mine(images(32)))


def test_a_trained_model_keeps_its_arguments_when_it_is_saved_again(stand_in, tmp_path):
    model = timm.create_model("laplacianformer_nano", pretrained=True).eval()
    weights.save_weights(tmp_path / "again.safetensors", model, classes=CIFAR10, metadata={})
    again = weights.load_weights(tmp_path / "again.safetensors")
    assert torch.equal(again.model(images(32)), stand_in.model(images(32)))


def test_the_file_belongs_to_the_package():
    root = Path(__file__).parents[1]
    packed = re.search(r"package-data\]\nlaplacianformer = \[(.*)\]", (root / "pyproject.toml").read_text())
    inside = shipped.PATH.relative_to(root / "src" / "laplacianformer")
    assert any(fnmatch(str(inside), pattern) for pattern in re.findall(r'"(.*?)"', packed[1]))


@pytest.mark.skipif(not shipped.PATH.is_file(), reason="this source tree is without the weights")
def test_the_file_of_this_release_is_small_complete_and_works():
    assert shipped.PATH.stat().st_size <= 3e6
    loaded = weights.load_weights(shipped.PATH)
    assert sorted(loaded.classes) == sorted(CIFAR10)
    assert loaded.input["size"] == (3, 32, 32)
    assert {"data", "metrics", "commit", "date", "version", "recipe"} <= loaded.metadata.keys()
    assert "unknown" not in origin(loaded)
    assert 0.5 < metrics(loaded)["accuracy"] < 1
    assert not yaml.safe_load(loaded.metadata["recipe"])["data"]["root"], "a folder of the machine that trained it"
    model = timm.create_model("laplacianformer_nano", pretrained=True, num_classes=10).eval()
    logits = model(images(32))
    assert torch.equal(logits, loaded.model(images(32)))
    assert logits.softmax(1).max() > 0.2
