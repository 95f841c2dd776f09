"""A timm model as the backbone of a task with maps: its feature maps of the wanted strides, and how it learns."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import timm
import torch
from timm.layers import Format
from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from torch import Tensor, nn

from laplacianformer.model import LaplacianFormer
from laplacianformer.model._conversion import conversion_of, exchange, softmax_layers
from laplacianformer.training._frozen import flat, freeze_stages, freeze_statistics

# An argument of a backbone that was converted: what its weights file says about the layers that are not softmax.
CONVERTED = "converted"


class FeatureMaps(nn.Module):
    """The last feature map of each stride from `least` to `most` pixels that a timm model has, as (B, C, H, W).

    Args:
        arguments: of timm.create_model, and `CONVERTED` of a backbone that was converted.
        frozen_stages: number of feature maps, from the first, that don't train, with everything that they depend on: no
            gradients, no statistics.
        frozen_statistics: whitening and batch norm use their running statistics in training too, and don't update them.
    """

    def __init__(
        self,
        name: str,
        arguments: Mapping[str, Any],
        least: int,
        most: int,
        *,
        frozen_stages: int = 0,
        frozen_statistics: bool = False,
    ) -> None:
        super().__init__()
        self.name = name
        given = {key: value for key, value in arguments.items() if key != CONVERTED}
        self.body, self.wanted = _create(name, given, least, most)
        if CONVERTED in arguments:
            _convert(self.model, arguments[CONVERTED], name)
        info = self.body.feature_info
        self.strides = [info.reduction()[index] for index in self.wanted]
        self.channels = [info.channels()[index] for index in self.wanted]
        self.channels_last = getattr(self.body, "output_fmt", Format.NCHW) == Format.NHWC
        freeze_stages(self.model, info.module_name(), frozen_stages, name)
        if frozen_statistics:
            freeze_statistics(self.body)

    def forward(self, images: Tensor, mask: Tensor | None = None) -> "OrderedDict[str, Tensor]":
        """`mask` (B, H, W) is True where a pixel belongs to the image; only LaplacianFormer knows one."""
        if mask is not None and isinstance(self.model, LaplacianFormer):
            options = {"indices": self.body.out_indices, "norm": self.body.norm, "intermediates_only": True}
            maps: Any = self.model.forward_intermediates(images, mask=mask, **options)
        else:
            maps = self.body(images)
        chosen = [maps[index] for index in self.wanted]
        if self.channels_last:
            chosen = [features.permute(0, 3, 1, 2).contiguous() for features in chosen]
        return OrderedDict((str(level), features) for level, features in enumerate(chosen))

    @property
    def model(self) -> nn.Module:
        """The timm model itself, inside the wrapper that some have."""
        inner = getattr(self.body, "model", self.body)
        assert isinstance(inner, nn.Module)
        return inner


def _create(name: str, arguments: Mapping[str, Any], least: int, most: int) -> tuple[Any, list[int]]:
    """The model, without what comes after the last wanted feature map, and the indices of the wanted ones."""
    body: Any = timm.create_model(name, features_only=True, **arguments)
    found = body.feature_info.reduction()
    wanted = [
        index for index, stride in enumerate(found) if least <= stride <= most and stride not in found[index + 1 :]
    ]
    if not wanted:
        raise ValueError(f"{name} has feature maps of strides {found}: expected one from {least} to {most}")
    if wanted[-1] < len(found) - 1:
        taken = tuple(body.feature_info.out_indices[: wanted[-1] + 1])
        body = timm.create_model(name, features_only=True, **{**arguments, "out_indices": taken})
    return body, wanted


def _convert(model: nn.Module, said: Any, name: str) -> None:
    """Exchange the layers that a converted classifier has, where the backbone has them: it may end earlier, and timm
    joins the names of its parts by underscores."""
    conversion = conversion_of(said, f"{CONVERTED} in the arguments of {name}")
    wanted = {flat(layer) for layer in conversion.layers}
    layers = tuple(layer for layer in softmax_layers(model) if flat(layer) in wanted)
    exchange(model, replace(conversion, layers=layers))


def padding_mask(sizes: Tensor, whole: Sequence[int]) -> Tensor | None:
    """Which pixels (B, H, W) of a batch of this height and width belong to images of these sizes (B, 2), padded on the
    right and below; None where nothing is padded."""
    if bool((sizes == torch.tensor(list(whole), device=sizes.device)).all()):
        return None
    rows, columns = (torch.arange(length, device=sizes.device) for length in whole)
    return (rows < sizes[:, :1])[:, :, None] & (columns < sizes[:, 1:])[:, None, :]


def parameter_groups(
    model: nn.Module, maps: FeatureMaps, weight_decay: float, layer_decay: float
) -> list[dict[str, Any]]:
    """Groups of the parameters of a model on these maps: no weight decay on norms and biases, and in the backbone a
    learning rate that shrinks by the factor `layer_decay` per layer towards the input (timm's `lr_scale`)."""
    if layer_decay == 1:
        return param_groups_weight_decay(model, weight_decay)
    backbone = maps.model
    if not hasattr(backbone, "group_matcher"):
        raise ValueError(f"layer_decay={layer_decay}: the features of {maps.name} have no layers")
    inside = {id(parameter) for parameter in backbone.parameters()}
    rest = nn.ParameterDict()
    for name, parameter in model.named_parameters():
        if id(parameter) not in inside:
            rest[name.replace(".", "_")] = parameter
    return [
        *param_groups_layer_decay(backbone, weight_decay, layer_decay=layer_decay),
        *param_groups_weight_decay(rest, weight_decay),
    ]
