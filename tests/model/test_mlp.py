"""The MLP of a block: the fused form where nobody can see a difference, timm's own layers elsewhere."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from laplacianformer import ops
from laplacianformer.model._mlp import FusedMlp


@pytest.fixture
def mlp() -> FusedMlp:
    torch.manual_seed(0)
    return FusedMlp(8, 32, 0.0).eval()


def composed(mlp: FusedMlp, x: torch.Tensor) -> torch.Tensor:
    return mlp.fc2(nn.functional.gelu(mlp.fc1(x)))


def hook_of(mlp: FusedMlp, seen: list[str]) -> None:
    mlp.fc1.register_forward_hook(lambda *given: seen.append("fc1"))
    mlp.act.register_forward_pre_hook(lambda *given: seen.append("act"))


def test_the_result_is_that_of_the_layers_one_by_one(mlp: FusedMlp) -> None:
    x = torch.randn(2, 9, 8)
    torch.testing.assert_close(mlp(x), composed(mlp, x))
    assert list(mlp.state_dict()) == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]


def test_hooks_see_their_layers(mlp: FusedMlp) -> None:
    seen: list[str] = []
    hook_of(mlp, seen)
    mlp(torch.randn(2, 9, 8))
    assert seen == ["fc1", "act"]


def test_hooks_of_all_modules_see_the_layers(mlp: FusedMlp) -> None:
    seen: list[str] = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *given: seen.append(type(module).__name__))
    try:
        mlp(torch.randn(2, 9, 8))
    finally:
        handle.remove()
    assert seen[:2] == ["Linear", "Gelu"]


def test_gradients_of_hooked_layers_pass_their_hooks(mlp: FusedMlp) -> None:
    seen: list[str] = []
    mlp.fc2.register_full_backward_hook(lambda *given: seen.append("fc2"))
    mlp(torch.randn(2, 9, 8, requires_grad=True)).sum().backward()
    assert seen == ["fc2"]


def test_layers_that_were_changed_are_called(mlp: FusedMlp) -> None:
    """By a parametrization, by another module in their place, or by another forward."""
    x = torch.randn(2, 9, 8)

    class Doubled(nn.Module):
        def forward(self, weight):
            return 2 * weight

    parametrize.register_parametrization(mlp.fc1, "weight", Doubled())
    torch.testing.assert_close(mlp(x), composed(mlp, x))
    mlp.fc2 = nn.Identity()
    assert mlp(x).shape == (2, 9, 32)
    mlp.act.forward = torch.zeros_like
    assert not mlp(x).any()


def test_dropout_between_the_layers_is_applied() -> None:
    torch.manual_seed(0)
    mlp, x = FusedMlp(8, 32, 0.5), torch.randn(2, 9, 8)
    assert not torch.equal(mlp(x), mlp(x))
    mlp.eval()
    torch.testing.assert_close(mlp(x), composed(mlp, x))


def test_a_forced_backend_is_used(mlp: FusedMlp) -> None:
    x = torch.randn(2, 9, 8)
    with ops.use_backend("reference"):
        assert torch.equal(mlp(x), composed(mlp, x))
