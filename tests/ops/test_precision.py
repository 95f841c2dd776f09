"""What autocast does to the inputs of an op."""

import pytest
import torch

from laplacianformer.ops._precision import under_autocast, without_autocast


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_autocast_is_seen_on_every_device(device: str) -> None:
    """torch.autocast needs a device that exists; the setting that it changes does not."""
    tensor = torch.ones(2, 2, device="meta")
    on_device = type("OnDevice", (), {"device": torch.device(device), "dtype": tensor.dtype, "to": tensor.to})()
    assert under_autocast(on_device) == (on_device,)
    before = torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, torch.bfloat16)
    try:
        (cast,) = under_autocast(on_device)
        with without_autocast(torch.device("cpu")):
            inside = torch.is_autocast_enabled("cpu")
    finally:
        torch.set_autocast_dtype(device, before)
        torch.set_autocast_enabled(device, False)
    assert cast.dtype == torch.bfloat16
    assert not inside
