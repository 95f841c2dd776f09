"""Settings that change what a layer computes with given weights, as a tensor in its state: the text of their JSON.

A tensor, and not an object, because safetensors files hold nothing else; of bytes, because averages of weights leave
these alone.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

SUFFIX = "_extra_state"  # torch's name for what a module adds to its state


def as_tensor(settings: Mapping[str, Any]) -> Tensor:
    """(n,) bytes, on the CPU whatever the default device is."""
    text = json.dumps(settings, sort_keys=True).encode()
    return torch.tensor(list(text), dtype=torch.uint8, device="cpu")


def entries(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of settings in a state."""
    return {name: value for name, value in state.items() if name.endswith(SUFFIX) and value.dtype == torch.uint8}


def differences(given: Any, expected: Mapping[str, Any]) -> list[str]:
    """What a tensor of settings says otherwise than expected, in words; empty where it says the same.

    A setting that only one of the two has is no difference: versions may add some.
    """
    try:
        # Means of equal bytes are these bytes, whatever type they were computed in.
        found = json.loads(bytes(given.detach().cpu().round().to(torch.uint8).tolist()))
    except (AttributeError, RuntimeError, TypeError, ValueError):
        found = None
    if not isinstance(found, dict):
        return ["settings that can't be read"]
    expected = json.loads(json.dumps(expected))  # tuples are lists there
    names = sorted(name for name in {*found} & {*expected} if found[name] != expected[name])
    return [f"{name}={found[name]!r} instead of {expected[name]!r}" for name in names]


def tensor_differences(given: Any, expected: Tensor) -> list[str]:
    """The same, where what is expected is such a tensor."""
    return differences(given, json.loads(bytes(expected.tolist())))
