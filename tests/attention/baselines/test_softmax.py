"""SoftmaxAttention: the formula, and the contract it shares with the Laplacian layer."""

import pytest
import torch
from torch.nn import functional as F

from laplacianformer import SoftmaxAttention
from laplacianformer.attention import ATTENTIONS, GridAttention

from .. import oracle
from ..oracle import tokens


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("rope", [False, True])
def test_output_is_softmax_attention_plus_the_local_branch(rope: bool, tied: bool) -> None:
    torch.manual_seed(0)
    size, x = (4, 5), tokens((4, 5))
    layer = SoftmaxAttention(16, 2, rope=rope, tied=tied).double()
    parts = F.linear(x, layer.qkv.weight, layer.qkv.bias).split(16, dim=-1)
    q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in (parts[0], parts[0 if tied else 1], parts[-1]))
    if rope:
        position = oracle.coordinates(size)[0, 0].T
        q, k = oracle.rotate(q, *position), oracle.rotate(k, *position)
    weights = (q @ k.mT / 8**0.5).exp()
    mixed = weights / weights.sum(-1, keepdim=True) @ v
    images = v.transpose(1, 2).flatten(2).mT.unflatten(2, size)
    local = F.conv2d(images, layer.dwc.weight, layer.dwc.bias, padding=1, groups=16).flatten(2).mT
    expected = F.linear(mixed.transpose(1, 2).flatten(2) + local, layer.proj.weight, layer.proj.bias)
    torch.testing.assert_close(layer(x, size), expected, rtol=1e-10, atol=1e-10)


def test_gradients_equal_finite_differences() -> None:
    torch.manual_seed(0)
    layer = SoftmaxAttention(8, 2).double()
    x = tokens((2, 3), dim=8).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: layer(x, (2, 3)), (x, *layer.parameters()), fast_mode=True)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_mixer_has_the_same_contract(name: str) -> None:
    layer = ATTENTIONS[name](32, 4)
    assert isinstance(layer, GridAttention)
    for size in ((1, 1), (3, 5), (9, 8)):
        x = tokens(size, dim=32, dtype=torch.float32).requires_grad_()
        out = layer(x, size)
        assert out.shape == x.shape
        out.sum().backward()
        assert x.grad.isfinite().all()
    assert layer(torch.zeros(0, 6, 32), (2, 3)).shape == (0, 6, 32)


def test_a_mixer_must_define_mix() -> None:
    with pytest.raises(TypeError, match="GridAttention must define mix"):
        GridAttention(8, 2)(tokens((2, 2), dim=8, dtype=torch.float32), (2, 2))
