"""What a model costs: parameters, multiply-adds, L1 operations, activations. Counted from shapes alone."""

from dataclasses import dataclass
from typing import Any

import timm
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from laplacianformer.ops._tracing import packet_of

SIZES = ("nano", "tiny", "small", "medium", "large", "huge")
# Millions of parameters and GFLOPs (multiply-adds) at 224 pixels, as reported by the paper.
REPORTED = {
    "tiny": (12.1, 2.1),
    "small": (25.7, 4.8),
    "medium": (46.3, 7.43),
    "large": (63.1, 11.2),
    "huge": (78.5, 15.5),
}


@dataclass
class Cost:
    """Cost of one image.

    parameters: number of trainable parameters.
    macs: multiply-adds of convolutions, linear layers and products of kernels with values, as the usual
        counters (and so the paper's table) count them.
    l1_operations: subtractions, absolute values and additions of the L1 distances.
    solver_macs: multiply-adds of the Newton-Schulz steps.
    activations: number of outputs of convolutions, linear layers and matrix products.
    """

    name: str
    image_size: int
    parameters: int
    macs: int
    l1_operations: int
    solver_macs: int
    activations: int


def cost(name: str, image_size: int = 224, **model_args: Any) -> Cost:
    """The cost of a timm model for one square image."""
    with torch.device("meta"):
        model = timm.create_model(name, **model_args).eval()
        images = torch.empty(1, model.in_chans, image_size, image_size)
    with torch.no_grad(), _Counter() as counter:
        model(images)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Cost(name, image_size, parameters, counter.macs, counter.l1, counter.solver, counter.activations)


def costs(image_size: int = 224) -> list[Cost]:
    """The cost of every size of this package."""
    return [cost(f"laplacianformer_{size}", image_size) for size in SIZES]


class _Counter(TorchDispatchMode):
    """Adds up the FLOP formulas of the ops that run, split into the columns of `Cost`."""

    def __init__(self) -> None:
        super().__init__()
        self.macs = self.l1 = self.solver = self.activations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        packet, ours = packet_of(func), torch.ops.laplacianformer
        if packet not in flop_registry:
            return out
        flops = flop_registry[packet](*args, **(kwargs or {}), out_val=out)
        if packet is ours.newton_schulz:
            self.solver += flops // 2
        elif packet is ours.laplacian_kernel:
            self.l1 += flops
        elif packet is ours.laplacian_matmul:
            product = 2 * out.numel() * args[1].shape[-2]
            self.macs += product // 2
            self.l1 += flops - product
        else:
            self.macs += flops // 2
        if packet is not ours.newton_schulz:
            self.activations += (out[0] if isinstance(out, tuple) else out).numel()
        return out
