"""Saving and loading: state dicts, safetensors, timm's checkpoints and its hub layout in a local folder."""

import json
import re

import pytest
import safetensors.torch
import timm
import torch
from timm.models import save_for_hf

from tests.model.helpers import create, images, perturbed


@pytest.fixture
def trained():
    return perturbed(create(num_classes=10))


def test_whitening_statistics_are_part_of_the_weights():
    model = create()
    tensors = model.state_dict()
    layers = [name for name, _ in model.named_modules() if name.endswith("attention")]
    assert len(layers) == 7
    for layer in layers:
        assert tensors[f"{layer}.whitening.running_var"].shape[1:] == (7, 7)
        assert tensors[f"{layer}.whitening.num_batches_tracked"].item() == 0
    model.train()(images(32))
    assert all(model.state_dict()[f"{layer}.whitening.num_batches_tracked"].item() == 1 for layer in layers)


def test_whitening_statistics_act_in_evaluation(trained):
    before = trained(images(64))
    for name, buffer in trained.named_buffers():
        if name.endswith("running_var"):
            buffer.mul_(4)
    assert not torch.allclose(trained(images(64)), before, rtol=1e-3)


def test_safetensors_keep_every_bit(trained, tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_model(trained, path)
    copy = create(num_classes=10, seed=1)
    assert safetensors.torch.load_model(copy, path) == (set(), [])
    assert torch.equal(copy(images(64)), trained(images(64)))


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_checkpoint_path_loads_both_formats(trained, tmp_path, suffix):
    path = tmp_path / f"model.{suffix}"
    if suffix == "pth":
        torch.save({"state_dict": trained.state_dict()}, path)
    else:
        safetensors.torch.save_file(trained.state_dict(), path)
    copy = create(num_classes=10, seed=1, checkpoint_path=str(path))
    assert torch.equal(copy(images(64)), trained(images(64)))


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"attention": "softmax"},
        {"attention_args": {"grid": 5, "gain": "learned"}},
        {"depths": (1, 2, 1, 1), "in_chans": 1},
    ],
)
def test_a_model_saved_in_the_hub_layout_loads_unchanged(tmp_path, arguments, safe):
    model = perturbed(create(num_classes=10, **arguments))
    save_for_hf(model, tmp_path, model_args=arguments, safe_serialization=safe)
    copy = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    x = images(64, channels=arguments.get("in_chans", 3))
    assert torch.equal(copy(x), model(x))
    assert copy.num_classes == 10
    assert copy.pretrained_cfg["architecture"] == "laplacianformer_nano"


def test_the_hub_layout_adapts_head_and_channels_as_timm_does(trained, tmp_path):
    save_for_hf(trained, tmp_path, safe_serialization=True)
    copy = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, num_classes=3, in_chans=1).eval()
    assert copy(images(32, channels=1)).shape == (2, 3)
    assert torch.equal(copy.stages[3].embedding.proj.weight, trained.stages[3].embedding.proj.weight)
    first = trained.stages[0].embedding.proj.weight
    torch.testing.assert_close(copy.stages[0].embedding.proj.weight, first.sum(1, keepdim=True))

    features = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, features_only=True).eval()
    expected = trained.forward_intermediates(images(32), intermediates_only=True)
    assert all(torch.equal(a, b) for a, b in zip(features(images(32)), expected, strict=True))


def test_the_hub_configuration_states_name_head_and_normalisation(trained, tmp_path):
    save_for_hf(trained, tmp_path, safe_serialization=True)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architecture"] == "laplacianformer_nano"
    assert (config["num_classes"], config["num_features"]) == (10, trained.num_features)
    assert config["pretrained_cfg"]["input_size"] == [3, 32, 32]
    assert config["pretrained_cfg"]["mean"] == list(timm.data.IMAGENET_DEFAULT_MEAN)


MISSING, EXTRA = "stages.1.blocks.0.attention.qkv.weight", "stages.9.blocks.0.gate"


def without(tensors):
    del tensors[MISSING]


def with_one_more(tensors):
    tensors[EXTRA] = torch.zeros(3)


def with_another_shape(tensors):
    tensors[MISSING] = torch.zeros(5, 5)


@pytest.mark.parametrize(
    ("damage", "name"), [(without, MISSING), (with_one_more, EXTRA), (with_another_shape, MISSING)]
)
@pytest.mark.parametrize("source", ["state_dict", "checkpoint_path", "local-dir"])
def test_a_damaged_checkpoint_is_refused_with_the_name_of_the_tensor(trained, tmp_path, damage, name, source):
    save_for_hf(trained, tmp_path, safe_serialization=True)
    path, tensors = tmp_path / "model.safetensors", trained.state_dict()
    damage(tensors)
    safetensors.torch.save_file(tensors, path)
    load = {
        "state_dict": lambda: trained.load_state_dict(tensors),
        "checkpoint_path": lambda: create(num_classes=10, checkpoint_path=str(path)),
        "local-dir": lambda: timm.create_model(f"local-dir:{tmp_path}", pretrained=True),
    }
    with pytest.raises(RuntimeError, match=re.escape(name)):
        load[source]()


def test_weights_of_another_size_are_refused_with_the_name_of_the_tensor():
    with pytest.raises(RuntimeError, match=r"size mismatch for stages\.0\.embedding\.proj\.weight"):
        create("laplacianformer_tiny").load_state_dict(create("laplacianformer_nano").state_dict())


def test_a_missing_checkpoint_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        create(checkpoint_path=str(tmp_path / "none.safetensors"))
