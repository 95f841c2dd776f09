"""The projections of token mixers: `ops.linear` computes what calls of their layers do, and calls them where someone
could see a difference."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from laplacianformer import LaplacianAttention
from laplacianformer.attention import _linear


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def hooked(layer: nn.Linear) -> nn.Linear:
    layer.register_forward_hook(lambda module, inputs, output: 2 * output)
    return layer


def subclass(layer: nn.Linear) -> nn.Linear:
    scaled = Scaled(layer.in_features, layer.out_features)
    scaled.load_state_dict(layer.state_dict())
    return scaled


def parametrized(layer: nn.Linear) -> nn.Linear:
    for name in ("weight", "bias"):
        parametrize.register_parametrization(layer, name, Doubled())
    return layer


def replaced_forward(layer: nn.Linear) -> nn.Linear:
    plain = layer.forward
    layer.forward = lambda x: 2 * plain(x)
    return layer


def wrapped(layer: nn.Linear) -> nn.Module:
    return nn.Sequential(layer, nn.Identity())


@pytest.mark.parametrize("change", [hooked, subclass, parametrized, replaced_forward])
def test_a_layer_that_was_changed_is_called(change: Callable[[nn.Linear], nn.Module]) -> None:
    layer, x = nn.Linear(64, 192), torch.randn(2, 196, 64)
    expected = 2 * _linear.linear(layer, x)
    torch.testing.assert_close(_linear.linear(change(layer), x), expected)


def test_any_module_may_be_the_projection() -> None:
    attention, x = LaplacianAttention(64, 2).eval(), torch.randn(2, 196, 64)
    expected = attention(x, (14, 14))
    attention.qkv, attention.proj = wrapped(attention.qkv), wrapped(attention.proj)
    torch.testing.assert_close(attention(x, (14, 14)), expected)


@pytest.mark.parametrize("name", ["qkv", "proj"])
def test_hooks_of_projections_see_every_call(name: str) -> None:
    attention, seen = LaplacianAttention(64, 2), []
    getattr(attention, name).register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape))
    attention(torch.randn(2, 196, 64), (14, 14)).sum().backward()
    assert seen == [(2, 196, 64)]
