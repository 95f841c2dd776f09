"""The settings of a layer in its state: weights of other settings are not loaded without a word."""

from typing import Any

from torch import Tensor, nn

from laplacianformer._util import settings


class SettingsInState(nn.Module):
    """A layer whose state says with which settings its weights were made. Subclasses extend `numbers`.

    `load_state_dict` refuses weights of other settings, as it does those of other shapes, also with strict=False. A
    state without settings, as earlier versions wrote it, loads as it is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(_compare)

    def numbers(self) -> dict[str, Any]:
        """The settings that change what the layer computes with given weights."""
        return {}

    def get_extra_state(self) -> Tensor:
        return settings.as_tensor(self.numbers())

    def set_extra_state(self, state: Any) -> None:
        """Settings are compared, not taken over."""


def _compare(
    module: nn.Module,
    state: dict[str, Any],
    prefix: str,
    metadata: dict[str, Any],
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    assert isinstance(module, SettingsInState)
    key = f"{prefix}{settings.SUFFIX}"
    if key not in state:
        state[key] = module.get_extra_state()
    elif different := settings.differences(state[key], module.numbers()):
        name = prefix.removesuffix(".") or type(module).__name__
        errors.append(
            f"{name}: the weights were made with {', '.join(different)}: build the model with the settings of the "
            f"weights, or leave the entries {settings.SUFFIX} out of the state to load them anyway"
        )
