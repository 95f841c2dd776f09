"""The settings of a layer in its state: weights of other settings are not loaded without a word."""

import warnings
from typing import Any

from torch import Tensor, nn

from laplacianformer._util import settings

_warned: list[str] | None = None  # of the last load with a warning: kept, so that no other list is the same object


class SettingsInState(nn.Module):
    """A layer whose state says with which settings its weights were made. Subclasses extend `numbers`.

    `load_state_dict` refuses weights of other settings, as it does those of other shapes, also with strict=False. A
    state without settings, as earlier versions wrote it, can't be checked: it loads with one warning.
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
    key, name = f"{prefix}{settings.SUFFIX}", prefix.removesuffix(".") or type(module).__name__
    if key not in state:
        if any(given.startswith(prefix) for given in state):  # a part of a model may be loaded without this layer
            _warn_once(missing, name, module.numbers())
        state[key] = module.get_extra_state()
    elif different := settings.differences(state[key], module.numbers()):
        errors.append(
            f"{name}: the weights were made with {', '.join(different)}: build the model with the settings of the "
            f"weights, or leave the entries {settings.SUFFIX} out of the state to load them anyway"
        )


def _warn_once(load: list[str], name: str, numbers: dict[str, Any]) -> None:
    """Warn of the first layer whose settings a state does not say.

    load: the list of missing names, of which torch makes one per call of `load_state_dict`.
    """
    global _warned
    if _warned is load:
        return
    _warned = load
    used = ", ".join(f"{key}={value!r}" for key, value in numbers.items())
    default = ', with attention_args={"gain": 1.0} if it was the default of that time'
    warnings.warn(
        f"the state does not say with which settings the weights of {name} were made (it has no {settings.SUFFIX}): "
        f"they are used with {used}. If they were made with others, the outputs are wrong: build the model with those"
        f"{default if numbers.get('gain') == 'auto' else ''}",
        stacklevel=2,
    )
