"""The device that a model runs on."""

import platform

import torch

from laplacianformer._util import limits
from laplacianformer._util.errors import InputError


def chosen_device(name: str | None) -> torch.device:
    """The device of that name; without a name the accelerator of this machine, or its CPU if there is none."""
    if name is None:
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError("it holds no numbers")
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"the device {name!r} can't be used here: {limits.reason(error)}") from None
    return device


def device_name(device: torch.device) -> str:
    """What a speed was measured on, in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        return f"CPU ({platform.machine()}), threads: {torch.get_num_threads()}"
    return device.type
