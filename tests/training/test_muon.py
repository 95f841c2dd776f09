"""The optimiser: what makes it Muon on matrices, and AdamW on everything else."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from laplacianformer.training._muon import Muon, is_matrix, orthogonal
from laplacianformer.training._optimiser import create_optimiser
from laplacianformer.training._recipe import Optimise


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.tall = nn.Linear(12, 5), nn.Linear(5, 40)
        self.convolution, self.depthwise = nn.Conv2d(8, 6, 3), nn.Conv2d(8, 8, 3, groups=8)


def small() -> Small:
    torch.manual_seed(0)
    return Small()


def give_gradients(model: nn.Module, seed: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=chance)


@pytest.mark.parametrize("shape", [(64, 64), (5, 40), (300, 7), (4, 4)])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e6])
def test_directions_stay_and_singular_values_become_one(shape: tuple[int, int], scale: float) -> None:
    left, _, right = torch.linalg.svd(
        torch.randn(shape, generator=torch.Generator().manual_seed(1)), full_matrices=False
    )
    values = torch.logspace(0, -2, min(shape))
    result = left.T @ orthogonal(scale * (left * values) @ right) @ right.T
    assert ((result.diag() > 0.6) & (result.diag() < 1.3)).all()
    assert (result - result.diag().diag()).abs().max() < 1e-3


def test_zero_stays_zero() -> None:
    assert (orthogonal(torch.zeros(4, 6)) == 0).all()


def test_only_matrices_are_left_to_muon() -> None:
    found = {name for name, parameter in small().named_parameters() if is_matrix(parameter)}
    assert found == {"wide.weight", "tall.weight", "convolution.weight"}


def test_the_rest_is_adamw_to_the_bit() -> None:
    model, twin = small(), small()
    settings = {"lr": 0.01, "weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8}
    ours, theirs = Muon(model.parameters(), **settings), torch.optim.AdamW(twin.parameters(), fused=True, **settings)
    for step in range(3):
        for one, optimiser in ((model, ours), (twin, theirs)):
            give_gradients(one, step)
            optimiser.step()
    for (name, a), b in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b) != is_matrix(a), name


def test_steps_of_matrices_have_the_size_of_adamws() -> None:
    """AdamW's are 0.2 to 0.4 of the learning rate in the mean square."""
    model = small()
    before = deepcopy(model)
    optimiser = Muon(model.parameters(), lr=0.01)
    give_gradients(model, 0)
    optimiser.step()
    for a, b in zip(model.parameters(), before.parameters(), strict=True):
        if is_matrix(a):
            assert 0.1 < (a - b).square().mean().sqrt() / 0.01 < 0.3


def test_weight_decay_alone_shrinks() -> None:
    model = small()
    before = deepcopy(model)
    optimiser = Muon(model.parameters(), lr=0.5, weight_decay=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    torch.testing.assert_close(model.wide.weight, before.wide.weight * 0.95)


def test_a_saved_state_continues_bit_for_bit() -> None:
    model = small()
    optimiser = Muon(model.parameters(), lr=0.01)
    give_gradients(model, 0)
    optimiser.step()
    later = deepcopy(model)
    resumed = Muon(later.parameters(), lr=0.5)
    resumed.load_state_dict(deepcopy(optimiser.state_dict()))
    for one, other in ((model, optimiser), (later, resumed)):
        give_gradients(one, 1)
        other.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), later.parameters(), strict=True))


def test_a_parameter_without_a_gradient_stays_as_it_is() -> None:
    model = small()
    before = deepcopy(model)
    Muon(model.parameters(), lr=0.1, weight_decay=0.1).step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True))


def test_a_recipe_can_ask_for_it() -> None:
    optimiser = create_optimiser(
        small(), Optimise(epochs=1, optimiser="muon32", lr=0.1, batch_size=2, lr_batch=4, weight_decay=0.3)
    )
    assert isinstance(optimiser, Muon)
    decays: dict[float, list[Tensor]] = {group["weight_decay"]: group["params"] for group in optimiser.param_groups}
    assert {group["lr"] for group in optimiser.param_groups} == {0.05}
    assert all(parameter.ndim == 1 for parameter in decays[0.0])
    assert all(parameter.ndim > 1 for parameter in decays[0.3])
