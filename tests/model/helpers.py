"""Shared by the tests of the backbone: names, small images, models that are the same on every run."""

import weakref
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import laplacianformer  # noqa: F401  (registers the models)

NAMES = [f"laplacianformer_{size}" for size in ("nano", "tiny", "small", "medium", "large", "huge")]
# For compilers, with few Newton-Schulz steps: each one is a part of the graph.
ONE_STAGE = {"depths": (1,), "embed_dims": (32,), "num_heads": (1,), "mlp_ratios": (2,)}
ONE_STAGE |= {"attention_args": {"iterations": 2}}
TWO_STAGES = {"depths": (1, 1), "embed_dims": (32, 64), "num_heads": (1, 2), "mlp_ratios": (2, 2)}


def create(name: str = "laplacianformer_nano", *, seed: int = 0, **arguments: Any) -> nn.Module:
    torch.manual_seed(seed)
    return timm.create_model(name, **arguments).eval()


def images(height: int = 64, width: int | None = None, *, batch: int = 2, channels: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(height)
    return torch.randn(batch, channels, height, width or height, generator=generator)


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def perturbed(model: nn.Module) -> nn.Module:
    """Moved away from the initial state, buffers included, so that a tensor that is not saved shows."""
    generator = torch.Generator().manual_seed(1)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.mul_(1 + 0.1 * torch.rand(tensor.shape, generator=generator))
        else:
            tensor.add_(3)
    return model


class PeakBytes(TorchDispatchMode):
    """Peak bytes of the tensors created inside this block, without views of the model's own tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.known = {tensor.untyped_storage()._cdata: None for tensor in (*model.parameters(), *model.buffers())}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.see(leaf.untyped_storage())
        return out

    def see(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.known:
            return

        def forget(_: Any) -> None:
            self.live -= size
            del self.known[key]

        self.known[key] = weakref.ref(storage, forget)
        self.live += size
        self.peak = max(self.peak, self.live)
