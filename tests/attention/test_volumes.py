"""The convolution of volumes: the numbers of PyTorch, every gradient, and its own gradient where that is used."""

import copy

import pytest
import torch
from torch import Tensor, nn

from laplacianformer.attention import AblationAttention, LaplacianAttention, _volumes
from laplacianformer.attention._volumes import convolve_volume

SIZES = [(4, 5, 3), (2, 3, 4), (1, 4, 5), (3, 1, 1)]


def convolution_of(dtype: torch.dtype = torch.float64, *, bias: bool = True) -> nn.Conv3d:
    torch.manual_seed(0)
    return nn.Conv3d(6, 6, 3, padding=1, groups=6, bias=bias, dtype=dtype)


def volume_of(size: tuple[int, ...], dtype: torch.dtype = torch.float64, batch: int = 2) -> Tensor:
    """Channels last in memory, as those of tokens are."""
    return torch.randn(batch, *size, 6, dtype=dtype, requires_grad=True).movedim(-1, 1)


def is_own(out: Tensor) -> bool:
    return "_Convolution" in type(out.grad_fn).__name__


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_forward_and_gradients_are_those_of_torch(size: tuple[int, ...], bias: bool) -> None:
    convolution, volume = convolution_of(bias=bias), volume_of(size)
    inputs, weights = [volume, *convolution.parameters()], torch.randn(2, 6, *size, dtype=torch.float64)
    own, torchs = convolve_volume(convolution, volume), convolution(volume)
    assert is_own(own)
    assert not is_own(torchs)
    assert torch.equal(own, torchs)
    found, expected = (torch.autograd.grad(out, inputs, weights) for out in (own, torchs))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_gradients_in_float32() -> None:
    convolution, volume = convolution_of(torch.float32), volume_of((9, 17, 20), torch.float32)
    double = copy.deepcopy(convolution).double()
    weights = torch.randn(2, 6, 9, 17, 20)
    found = torch.autograd.grad(convolve_volume(convolution, volume), [volume, *convolution.parameters()], weights)
    exact = volume.double()
    expected = torch.autograd.grad(double(exact), [exact, *double.parameters()], weights.double())
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-4, atol=1e-5 * float(two.abs().max()))


def test_second_derivatives_and_many_gradients_at_once() -> None:
    shapes = (1, 2, 2, 2, 3), (2, 1, 3, 3, 3), (2,)  # of the volume, the kernel and the bias
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]

    def convolve(volume: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
        out = _volumes._Convolution.apply(volume, kernel, bias)
        assert isinstance(out, Tensor)
        return out

    assert torch.autograd.gradgradcheck(convolve, inputs)
    assert torch.autograd.gradcheck(convolve, inputs, check_batched_grad=True)


def test_only_what_needs_a_gradient_gets_one() -> None:
    convolution, volume = convolution_of(), volume_of((3, 4, 5))
    convolution.weight.requires_grad_(False)
    out = convolve_volume(convolution, volume)
    assert is_own(out)
    out.sum().backward()
    assert convolution.weight.grad is None
    assert convolution.bias is not None
    assert convolution.bias.grad is not None


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")  # by torch's own jvp
def test_torch_has_the_rest() -> None:
    """Evaluation, other dtypes under autocast, forward-mode derivatives, and convolutions that someone listens to."""
    convolution, volume = convolution_of(torch.float32), volume_of((3, 4, 5), torch.float32)
    with torch.no_grad():
        assert not is_own(convolve_volume(convolution, volume))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = convolve_volume(convolution, volume)
        assert (is_own(out), out.dtype) == (False, torch.bfloat16)
    _, derivative = torch.func.jvp(lambda x: convolve_volume(convolution, x), (volume,), (volume,))
    assert convolution.bias is not None
    torch.testing.assert_close(derivative, convolution(volume) - convolution.bias[:, None, None, None])
    heard = []
    handle = convolution.register_forward_hook(lambda *_: heard.append(True))
    assert not is_own(convolve_volume(convolution, volume))
    handle.remove()
    assert heard
    assert is_own(convolve_volume(convolution, volume))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", [LaplacianAttention, AblationAttention])
def test_a_layer_has_the_same_gradients_with_it(
    kind: type[LaplacianAttention], masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"landmarks": "conv"} if kind is AblationAttention else {}
    torch.manual_seed(0)
    layer = kind(12, 2, axes=3, grid=2, prefix=1, **options).double()
    x, mask = torch.randn(2, 61, 12, dtype=torch.float64), torch.rand(2, 61) < 0.8

    def gradients() -> list[Tensor]:
        given, one = x.clone().requires_grad_(), copy.deepcopy(layer)
        one(given, (3, 4, 5), mask if masked else None).square().sum().backward()
        return [each.grad for each in (given, *one.parameters()) if each.grad is not None]

    own = gradients()
    monkeypatch.setattr("laplacianformer.attention._grid.convolve_volume", lambda convolution, x: convolution(x))
    torch.testing.assert_close(own, gradients(), rtol=1e-9, atol=1e-9)
