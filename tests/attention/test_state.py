"""The settings of a layer are in its state: weights of other settings are refused, those without any warn."""

import copy
import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch

from laplacianformer import LaplacianAttention
from laplacianformer._util.settings import as_tensor
from laplacianformer.attention import ATTENTIONS, AblationAttention
from tests.helpers import small_model
from tests.model.helpers import TWO_STAGES, images

OTHERS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("laplacian", {}, {"gain": 2.0}),
    ("laplacian", {}, {"scale": 2.0}),
    ("laplacian", {}, {"iterations": 12}),
    ("laplacian", {}, {"eps": 0.1}),
    ("laplacian", {}, {"rope": False}),
    ("laplacian", {"whitening": None}, {"whitening": None, "grid": 5}),
    ("ablation", {}, {"kernel": "gaussian"}),
    ("ablation", {}, {"gram": "cross"}),
    ("ablation", {}, {"solver": "cholesky"}),
    ("ablation", {"grid": None}, {"grid": None, "ratio": 2}),
    ("ablation", {"whitening": "instance"}, {"whitening": "full"}),
    ("soft", {}, {"kernel": "laplacian"}),
    ("soft", {}, {"averaged": True}),
    ("soft", {}, {"iterations": 5}),
    ("skyformer", {}, {"eps": 0.5}),
    ("nystromformer", {}, {"iterations": 3}),
    ("softmax", {}, {"rope": False}),
]


def without_settings(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key: value for key, value in state.items() if not key.endswith("_extra_state")}


def through_safetensors(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return safetensors.torch.load(safetensors.torch.save(state))


def through_torch(state: dict[str, torch.Tensor]) -> Any:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("through", [lambda state: state, through_safetensors, through_torch], ids=["", "file", "pt"])
@pytest.mark.parametrize(("name", "options", "others"), OTHERS)
def test_weights_of_other_settings_are_refused(name: str, options: Any, others: Any, through: Any) -> None:
    trained, other = ATTENTIONS[name](32, 2, **options), ATTENTIONS[name](32, 2, **others)
    state = through(trained.state_dict())
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=r"the weights were made with .* instead of .*: build the model with"):
            other.load_state_dict(state, strict=strict)
    with pytest.warns(UserWarning, match="does not say with which settings"):
        other.load_state_dict(without_settings(state))
    ATTENTIONS[name](32, 2, **options).load_state_dict(state)


@pytest.mark.parametrize("name", ["laplacian", "ablation"])
@pytest.mark.parametrize("normalised", [False, True])
def test_weights_with_and_without_qk_norm_are_refused(name: str, normalised: bool) -> None:
    """Also with strict=False, which would leave the learned scales out."""
    trained, other = (ATTENTIONS[name](32, 2, qk_norm=given) for given in (normalised, not normalised))
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=f"made with qk_norm={normalised} instead of {not normalised}"):
            other.load_state_dict(trained.state_dict(), strict=strict)
    ATTENTIONS[name](32, 2, qk_norm=normalised).load_state_dict(trained.state_dict())


@pytest.mark.parametrize("normalised", [False, True])
def test_a_setting_that_a_state_of_before_does_not_say_is_no_difference(normalised: bool) -> None:
    """As states had no `qk_norm` when they had all other settings."""
    layer, twin = (LaplacianAttention(32, 2, qk_norm=normalised) for _ in range(2))
    numbers = {name: value for name, value in layer.numbers().items() if name != "qk_norm"}
    twin.load_state_dict({**layer.state_dict(), "_extra_state": as_tensor(numbers)})
    torch.testing.assert_close(dict(twin.named_parameters()), dict(layer.named_parameters()), rtol=0, atol=0)


def test_the_layer_and_the_setting_are_named() -> None:
    models = [
        timm.create_model("laplacianformer_nano", num_classes=3, attention_args={"gain": gain}, **TWO_STAGES)
        for gain in (1.0, 2.0)
    ]
    with pytest.raises(RuntimeError) as error:
        models[1].load_state_dict(models[0].state_dict())
    assert "stages.0.blocks.0.attention: the weights were made with gain=1.0 instead of 2.0" in str(error.value)


def test_weights_of_another_mixer_are_refused() -> None:
    softmax, inline = ATTENTIONS["softmax"](32, 2), ATTENTIONS["inline"](32, 2)
    with pytest.raises(RuntimeError, match="attention='softmax' instead of 'inline'"):
        inline.load_state_dict(softmax.state_dict())
    with pytest.raises(RuntimeError, match="num_heads=2 instead of 4"):
        ATTENTIONS["softmax"](32, 4).load_state_dict(softmax.state_dict())


@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_state_without_settings_loads_with_a_warning(name: str) -> None:
    """As earlier versions wrote it; other settings are then unknown."""
    state = without_settings(ATTENTIONS[name](32, 2).state_dict())
    with pytest.warns(UserWarning, match="does not say with which settings .* used with .*rope=False"):
        found = ATTENTIONS[name](32, 2, rope=False).load_state_dict(state)
    assert (found.missing_keys, found.unexpected_keys) == ([], [])
    assert "_extra_state" not in state, "what was given is not changed"


def load_pth(model: torch.nn.Module, state: dict[str, torch.Tensor], folder: Path) -> None:
    torch.save({"state_dict": state}, folder / "state.pth")
    timm.models.load_checkpoint(model, str(folder / "state.pth"))


def load_safetensors(model: torch.nn.Module, state: dict[str, torch.Tensor], folder: Path) -> None:
    safetensors.torch.save_file(state, folder / "state.safetensors")
    timm.models.load_checkpoint(model, str(folder / "state.safetensors"))


@pytest.mark.parametrize("load", [lambda model, state, _: model.load_state_dict(state), load_pth, load_safetensors])
def test_one_warning_per_load_says_what_to_set(load: Any, tmp_path: Path) -> None:
    """A state of before settings were stored, when the default gain was 1, gives other outputs in a model of today."""
    old, new = (small_model(attention_args=arguments) for arguments in ({"gain": 1.0}, {}))
    state = without_settings(old.state_dict())
    for _ in range(2):
        with pytest.warns(UserWarning, match="does not say with which settings") as said:
            load(new, state, tmp_path)
        assert len(said) == 1
        message = str(said[0].message)
        assert "stages.0.blocks.0.attention" in message
        assert "gain='auto'" in message
        assert 'build the model with those, with attention_args={"gain": 1.0} if' in message
    x = images(32)
    right = small_model(attention_args={"gain": 1.0})
    with pytest.warns(UserWarning, match="gain=1.0"):
        load(right, state, tmp_path)
    with torch.no_grad():
        assert torch.equal(right(x), old(x))
        assert not torch.allclose(new(x), old(x), atol=1e-3)


def test_a_part_of_a_model_says_nothing_of_its_layers() -> None:
    model = small_model()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.load_state_dict({"head.bias": torch.zeros(7)}, strict=False)


def test_both_laplacian_layers_take_each_others_weights() -> None:
    """The parts are the same, and so is what synced statistics are in evaluation."""
    layer, twin = LaplacianAttention(32, 2), AblationAttention(32, 2, whitening="synced")
    twin.load_state_dict(layer.state_dict())
    layer.load_state_dict(twin.state_dict())


def test_settings_that_cannot_be_read_are_refused() -> None:
    layer = LaplacianAttention(32, 2)
    for wrong in (torch.zeros(3, dtype=torch.uint8), torch.zeros(2, 2), b"text", torch.tensor([91, 93])):
        with pytest.raises(RuntimeError, match="settings that can't be read"):
            layer.load_state_dict({**layer.state_dict(), "_extra_state": wrong})


def test_copies_and_averages_keep_the_settings() -> None:
    layer = LaplacianAttention(32, 2, gain=2.0)
    state = layer.state_dict()
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        copied.load_state_dict(state)
        with pytest.raises(RuntimeError, match=r"gain='auto' instead of 2.0"):
            copied.load_state_dict(LaplacianAttention(32, 2).state_dict())
    mean = {key: (value.double() + value.double()) / 2 for key, value in state.items()}
    layer.load_state_dict({key: value.float() for key, value in mean.items()})
    assert state["_extra_state"].dtype == torch.uint8
    with torch.device("meta"):
        assert LaplacianAttention(32, 2).state_dict()["_extra_state"].device.type == "cpu"


def test_settings_that_are_changed_later_are_those_in_the_state() -> None:
    layer = LaplacianAttention(32, 2)
    layer.scale = 2.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LaplacianAttention(32, 2, scale=2.0).load_state_dict(layer.state_dict())
