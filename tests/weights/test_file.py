"""Weights files: they give the same model back, say what they are, and errors name what is wrong with one."""

import json
import os
import pickle
import re
import resource

import pytest
import safetensors.torch
import timm
import torch
from safetensors import safe_open

from laplacianformer import LaplacianFormer, weights
from laplacianformer._util.errors import InputError
from laplacianformer._util.tensor_files import read_tensors, write_tensors
from laplacianformer.attention import LaplacianAttention
from laplacianformer.weights import load_weights, save_weights
from tests.helpers import CLASSES, INPUT, save_small, small_model
from tests.model.helpers import TWO_STAGES, images, perturbed


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"attention": "softmax"},
        {"in_chans": 1},
        {"attention_args": {"grid": 5, "gain": 3.0, "kernel": "gaussian", "eps": 0.5}},
        {"attention_args": {"gain": "learned", "whitening": None}, "drop_path_rate": 0.3},
    ],
)
def test_a_file_gives_the_same_model_back(path, arguments):
    model = small_model(**arguments)
    channels = arguments.get("in_chans", 3)
    taken = {**INPUT, "size": [channels, 32, 32], "mean": [0.5] * channels, "std": [0.25] * channels}
    save_weights(path, model, classes=CLASSES, metadata={"input": json.dumps(taken), "commit": "abc", "note": "ü"})
    loaded = load_weights(path)
    x = images(32, channels=channels)
    assert torch.equal(loaded.model(x), model(x))
    assert not loaded.model.training
    assert loaded.classes == CLASSES
    assert loaded.input["size"] == (channels, 32, 32)
    assert (loaded.metadata["commit"], loaded.metadata["note"]) == ("abc", "ü")
    assert loaded.metadata["task"] == "classification"


def test_other_models_of_timm_can_be_saved_too(path):
    torch.manual_seed(0)
    model = perturbed(timm.create_model("resnet10t", num_classes=3).eval())
    save_weights(path, model, classes="abc", metadata={})
    loaded = load_weights(path)
    assert torch.equal(loaded.model(images(64)), model(images(64)))
    assert loaded.input["size"] == (3, 176, 176)


def test_without_an_input_the_file_states_that_of_the_model(path):
    save_weights(path, small_model(), classes=CLASSES, metadata={})
    assert load_weights(path).input == {
        "size": (3, 32, 32),
        "mean": list(timm.data.IMAGENET_DEFAULT_MEAN),
        "std": list(timm.data.IMAGENET_DEFAULT_STD),
        "interpolation": "bicubic",
        "crop_pct": 1.0,
    }


def test_a_head_that_was_replaced_is_what_is_saved(path):
    model = small_model()
    model.reset_classifier(2)
    save_weights(path, model, classes=["yes", "no"], metadata={})
    assert load_weights(path).model(images(32)).shape == (2, 2)


def test_one_number_for_the_size_means_a_square(path):
    save_small(path, input=json.dumps({**INPUT, "size": 48}))
    assert load_weights(path).input["size"] == (3, 48, 48)


def test_nano_fits_into_three_megabytes_in_float16_and_loads_as_float32(path):
    torch.manual_seed(0)
    model = perturbed(timm.create_model("laplacianformer_nano", num_classes=10).eval())
    save_weights(path, model, classes="0123456789", metadata={}, dtype=torch.float16)
    assert path.stat().st_size < 3e6
    loaded = load_weights(path).model
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    torch.testing.assert_close(loaded(images(32)), model(images(32)), rtol=0, atol=2e-3)
    for (name, buffer), other in zip(model.named_buffers(), loaded.buffers(), strict=True):
        assert torch.equal(buffer, other), name


def test_values_that_float16_can_not_hold_are_refused(path):
    model = small_model()
    with torch.no_grad():
        model.head.weight[0, 0] = 1e6
    with pytest.raises(InputError, match=r"head\.weight has values too large for torch\.float16"):
        save_weights(path, model, classes=CLASSES, metadata={}, dtype=torch.float16)
    assert os.listdir(path.parent) == []


def test_saving_changes_neither_the_model_nor_the_random_numbers(path):
    model = small_model().train()
    before, state = {name: tensor.clone() for name, tensor in model.state_dict().items()}, torch.get_rng_state()
    save_weights(path, model, classes=CLASSES, metadata={})
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_disk_that_fills_up_leaves_the_old_file_and_nothing_else(path):
    save_small(path)
    old = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(InputError, match=r"can't write .*: File too large"):
            save_small(path, note="another")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == old
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(
    ("classes", "metadata", "message"),
    [
        (CLASSES[:3], {}, "3 distinct class names for a model with 7 outputs"),
        (["same"] * 7, {}, "1 distinct class names for a model with 7 outputs"),
        (CLASSES, {"architecture": "laplacianformer_tiny"}, "does not hold the laplacianformer_tiny that it names"),
        (CLASSES, {"input": json.dumps({**INPUT, "std": [0.0] * 3})}, "input that can't be used"),
    ],
)
def test_a_file_that_could_not_be_loaded_is_not_saved(path, classes, metadata, message):
    with pytest.raises(InputError, match=message):
        save_weights(path, small_model(), classes=classes, metadata=metadata)
    assert os.listdir(path.parent) == []


def test_models_that_a_file_can_not_describe_are_refused(path):
    with pytest.raises(InputError, match="arguments can't be written"):
        save_weights(path, small_model(attention=LaplacianAttention), classes=CLASSES, metadata={})
    with pytest.raises(TypeError, match=r"from timm\.create_model"):
        save_weights(path, LaplacianFormer(num_classes=7), classes=CLASSES, metadata={})
    with pytest.raises(TypeError, match="must be text, got other types for epochs"):
        save_weights(path, small_model(), classes=CLASSES, metadata={"epochs": 3})


# ---- wrong files ----


def rewritten(path, tensors=None, **metadata):
    """The file with some of its metadata replaced (None: removed), or other tensors; without the checksum."""
    with safe_open(path, framework="pt") as file:
        stated = {**file.metadata(), "sha256": None, **metadata}
    found = safetensors.torch.load_file(path)
    safetensors.torch.save_file(
        {**found, **(tensors or {})}, path, {key: text for key, text in stated.items() if text is not None}
    )


@pytest.mark.parametrize("fraction", [0.0, 1e-5, 0.001, 0.01, 0.5, 0.999999])
def test_a_truncated_file_is_refused(path, fraction):
    save_small(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(fraction * len(whole))])
    with pytest.raises(InputError, match="is not a complete safetensors file"):
        load_weights(path)


@pytest.mark.parametrize(
    "content", [b"hello, not weights", pickle.dumps({"a": 1}), b"\xff" * 100], ids=["text", "pickle", "ff"]
)
def test_files_of_another_kind_are_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(InputError, match="is not a complete safetensors file"):
        load_weights(path)


def test_what_is_not_a_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="is not there: expected a weights file"):
        load_weights(tmp_path / "none.safetensors")
    with pytest.raises(InputError, match="is a folder: expected a weights file"):
        load_weights(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": None}, "no architecture in its metadata"),
        ({"classes": None, "input": None}, "no input, classes in its metadata"),
        ({"architecture": "laplacianformer_gigantic"}, "'laplacianformer_gigantic', which this version"),
        ({"architecture": "hf-hub:somebody/model"}, "'hf-hub:somebody/model', which this version"),
        (
            {"architecture": "laplacianformer_tiny"},
            r"proj\.weight has shape \(32, 3, 3, 3\) instead of \(32, 3, 7, 7\)",
        ),
        ({"task": "detection"}, "holds a detector: expected a classifier; laplacianformer detect"),
        ({"task": "poetry"}, "holds weights for poetry: expected a classifier"),
        ({"classes": '["a", "b"]'}, "2 distinct class names for a model with 7 outputs"),
        ({"classes": '{"a": 1}'}, "classes that are not a list of names"),
        ({"classes": "a, b"}, "classes in the metadata of .* is not JSON"),
        ({"model_args": '{"num_classes": 9}'}, "does not hold the laplacianformer_nano that it names"),
        ({"model_args": '{"wings": 2}'}, "can't be built with {'wings': 2}"),
        ({"model_args": '{"pretrained": true}'}, "model_args that are not allowed"),
        ({"model_args": '{"checkpoint_path": "/etc/passwd"}'}, "model_args that are not allowed"),
        ({"model_args": "[]"}, "model_args that are not allowed"),
        ({"input": "[]"}, "input that can't be used"),
        ({"input": json.dumps({**INPUT, "size": [1, 32, 32]})}, "mean and std for 3 channels"),
        ({"input": json.dumps({**INPUT, "interpolation": "magic"})}, "input that can't be used"),
        ({"input": json.dumps({**INPUT, "crop_pct": 7})}, "input that can't be used"),
    ],
    ids=str,
)
def test_inconsistent_metadata_is_refused_in_one_line(path, changes, message):
    save_small(path)
    rewritten(path, **changes)
    with pytest.raises(InputError, match=message) as caught:
        load_weights(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_task_of_a_file_is_read_without_its_tensors(path):
    assert weights.stated_task(None) == "classification", "the weights inside the package"
    assert weights.stated_task(path) == "", "no file"
    save_small(path)
    assert weights.stated_task(path) == "classification"
    rewritten(path, task="detection")
    assert weights.stated_task(path) == "detection"
    path.write_bytes(b"no weights")
    assert weights.stated_task(path) == ""


def test_a_plain_state_dict_says_nothing_about_itself(path):
    safetensors.torch.save_file(small_model().state_dict(), path)
    with pytest.raises(InputError, match="does not say what it holds"):
        load_weights(path)


def test_unexpected_tensors_are_named(path):
    save_small(path)
    rewritten(path, tensors={"head.gate": torch.zeros(1)})
    with pytest.raises(InputError, match=re.escape("head.gate is unknown")):
        load_weights(path)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.bool, torch.complex64], ids=str)
def test_weights_that_are_no_real_numbers_are_refused(path, dtype):
    """They were converted without a word."""
    model = save_small(path)
    rewritten(path, tensors={"head.bias": model.head.bias.detach().to(dtype)})
    with pytest.raises(InputError, match=re.escape(f"head.bias has the type {dtype} instead of torch.float32")):
        load_weights(path)
    rewritten(path, tensors={"head.bias": model.head.bias.detach().double()})
    assert load_weights(path).model.head.bias.dtype == torch.float32


def test_a_file_whose_arguments_are_not_those_of_its_weights_is_refused(path):
    """The settings of each layer are among its tensors; a file of an earlier version has none, and loads."""
    save_small(path)
    rewritten(path, model_args=json.dumps({**TWO_STAGES, "num_classes": 7, "attention_args": {"gain": 2.0}}))
    with pytest.raises(InputError, match=r"blocks.0.attention was made with gain='auto' instead of 2.0") as error:
        load_weights(path)
    assert "\n" not in str(error.value)
    tensors, metadata = read_tensors(path)
    old = {name: tensor for name, tensor in tensors.items() if not name.endswith("_extra_state")}
    assert len(old) < len(tensors)
    write_tensors(path, old, metadata)
    assert load_weights(path).model.stages[0].blocks[0].attention.gain == 2.0


def test_timm_refuses_a_file_for_a_model_of_other_settings(path):
    save_small(path)
    changed = {"num_classes": 7, "attention_args": {"scale": 2.0}, **TWO_STAGES}
    with pytest.raises(RuntimeError, match="the weights were made with"):
        timm.create_model("laplacianformer_nano", checkpoint_path=str(path), **changed)


def test_the_description_states_data_accuracy_and_limits(path):
    save_small(
        path, description="Trained on seven animals.", metrics='{"accuracy": 0.875, "steps": 70, "averaged": true}'
    )
    text = weights.describe(load_weights(path))
    for part in (
        "laplacianformer_nano",
        "32 x 32",
        "Trained on seven animals.",
        "accuracy 87.5 %",
        "steps 70",
        "zebra, ant",
    ):
        assert part in text
    assert "averaged" not in text
    assert "anything else is assigned to one of them" in text
