"""A model whose linear layers and convolutions compute in 8-bit integers, by PyTorch's own operators for x86 CPUs.

Weights have one scale per output and activations one per tensor, from the range that they take on calibration images.
An MLP stays in 8 bits between its layers: the GELU is computed on the sums of the first, before they are rounded.
"""

import copy
import platform
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import Mlp
from torch import Tensor, nn

from laplacianformer._util.errors import InputError
from laplacianformer._util.precision import cpu_has
from laplacianformer.classification._evaluation import BATCH_SIZE, open_batches
from laplacianformer.data._batch import NO_LABEL, Batch
from laplacianformer.weights import Weights

CALIBRATION_IMAGES = 256
LEVELS = 255  # of activations, which are unsigned


@dataclass
class Range:
    """The numbers that an activation takes, and how they become integers: round(x / scale) + zero. It holds 0."""

    low: float = 0.0
    high: float = 0.0

    def add(self, x: Tensor) -> None:
        """Make it as wide as these numbers."""
        low, high = x.aminmax()
        self.low, self.high = min(self.low, float(low)), max(self.high, float(high))

    @property
    def scale(self) -> float:
        return max(self.high - self.low, 1e-6) / LEVELS

    @property
    def zero(self) -> int:
        return round(-self.low / self.scale)


def calibration_images(loaded: Weights, data: str, *, allow_pipes: bool = False) -> Iterator[Tensor]:
    """Batches of images from all over `[READER:]DIR`: of its training split, or without one of the held-out split."""

    def batches(split: str) -> Iterable[Batch]:
        return open_batches(loaded, data, split, samples=CALIBRATION_IMAGES, allow_pipes=allow_pipes)

    try:
        opened = batches("train")
    except InputError:
        opened = batches("validation")
    for batch in islice(opened, -(-CALIBRATION_IMAGES // BATCH_SIZE)):  # a stream has no number of images
        yield batch.images[batch.targets != NO_LABEL]


@torch.no_grad()
def to_int8(model: nn.Module, batches: Iterable[Tensor]) -> nn.Module:
    """A copy of a classifier for `torch.export`, with all layers in 8 bits but the head and depth-wise convolutions.

    batches: calibration images, as the model takes them.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        raise InputError(f"8-bit packages are for x86 CPUs, this one is {platform.machine()}: use float32 or bfloat16")
    _let_packing_be_traced()
    ranges = _ranges(model, batches)
    if not all(seen.low < seen.high for seen in ranges.values()):
        raise InputError("8-bit integers need calibration images on which every layer is given different numbers")
    twin = copy.deepcopy(model)
    for name, module in list(twin.named_modules()):
        if isinstance(module, Mlp) and _is_fusible(module):
            first, second = ranges.pop(f"{name}.fc1"), ranges.pop(f"{name}.fc2")
            twin.set_submodule(name, nn.Sequential(Int8Layer(module.fc1, first, second), Int8Layer(module.fc2, second)))
    for name, inputs in ranges.items():
        twin.set_submodule(name, Int8Layer(twin.get_submodule(name), inputs))
    return twin


def _let_packing_be_traced() -> None:
    """For tracing, a packed weight is as large as the weight: torch states this for linear layers only."""
    with suppress(RuntimeError):  # it is known already
        torch.library.register_fake("onednn::qconv_prepack", lambda weight, *settings: torch.empty_like(weight))


def _ranges(model: nn.Module, batches: Iterable[Tensor]) -> dict[str, Range]:
    """What the layers to quantise are given, by their names, on these images."""
    head = model.get_classifier()  # type: ignore[operator]  # of every model of timm
    layers = {name: each for name, each in model.named_modules() if _is_quantisable(each) and each is not head}
    ranges = {name: Range() for name in layers}
    hooks = [
        layer.register_forward_pre_hook(lambda module, inputs, name=name: ranges[name].add(inputs[0]))
        for name, layer in layers.items()
    ]
    try:
        for images in batches:
            model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return ranges


def _is_quantisable(layer: nn.Module) -> bool:
    return type(layer) is nn.Linear or (type(layer) is nn.Conv2d and layer.groups == 1)


def _is_fusible(mlp: Mlp) -> bool:
    """Whether it is two linear layers with an exact GELU between them."""
    if type(mlp.fc1) is not nn.Linear or type(mlp.fc2) is not nn.Linear or not isinstance(mlp.norm, nn.Identity):
        return False
    probe = torch.linspace(-4, 4, 65)
    return torch.allclose(mlp.act(probe), F.gelu(probe), atol=1e-5)


class Int8Layer(nn.Module):
    """A linear layer or a convolution, of float32 to float32, or with `outputs` to 8-bit integers after a GELU.

    inputs, outputs: the ranges of what it is given, and of what the GELU returns.
    """

    weight: Tensor
    scale: Tensor
    zero: Tensor
    bias: Tensor

    def __init__(self, layer: nn.Module, inputs: Range, outputs: Range | None = None) -> None:
        super().__init__()
        assert isinstance(layer, nn.Linear | nn.Conv2d)
        self.inputs, self.outputs = inputs, outputs
        self.geometry = (layer.stride, layer.padding, layer.dilation, 1) if isinstance(layer, nn.Conv2d) else None
        # CPUs without VNNI add pairs of products in 16 bits, which hold those of 7-bit weights.
        largest = 127 if any(cpu_has(name, unknown=False) for name in ("avx512_vnni", "avx_vnni")) else 63
        weight = layer.weight.detach()
        scale = (weight.flatten(1).abs().amax(1) / largest).clamp(min=1e-12)
        integers = (weight.flatten(1) / scale[:, None]).round().to(torch.int8).view(weight.shape)
        self.register_buffer("weight", integers)
        self.register_buffer("scale", scale)
        self.register_buffer("zero", torch.zeros(len(scale), dtype=torch.int32))
        self.register_buffer("bias", torch.zeros(len(scale)) if layer.bias is None else layer.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """x: float32, or 8-bit integers in the range of the inputs."""
        given = self.inputs.scale, self.inputs.zero
        out: tuple[Any, ...] = 1.0, 0, torch.float32, "none", [], ""
        if self.outputs is not None:
            out = self.outputs.scale, self.outputs.zero, torch.uint8, "gelu", [], "none"
        if x.dtype != torch.uint8:
            x = (x / given[0]).round().add(given[1]).clamp(0, LEVELS).to(torch.uint8)
        weights = self.scale, self.zero, self.bias
        ops = torch.ops.onednn
        # The compiler packs the weights, once and for all.
        if self.geometry is None:
            packed = ops.qlinear_prepack(self.weight, None)
            return ops.qlinear_pointwise(x, *given, packed, *weights, *out)
        packed = ops.qconv_prepack(self.weight, self.scale, *given, *self.geometry, None)
        return ops.qconv_pointwise(x, *given, packed, *weights, *self.geometry, *out)
