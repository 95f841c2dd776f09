"""Whitening: which variance, over what, and how the running average follows it."""

import copy
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from laplacianformer.attention import AblationAttention, LaplacianAttention
from laplacianformer.attention._whitening import Whitening, paused_updates, resize

from .oracle import build, tokens


def features(seed: int = 0, batch: int = 3, queries: int = 40, cells: int = 4) -> torch.Tensor:
    """(B, 2 heads, N, m), each column with a spread and a mean of its own."""
    generator = torch.Generator().manual_seed(seed)
    spread = 0.2 + torch.rand(1, 2, 1, cells, generator=generator, dtype=torch.float64)
    shape = (batch, 2, queries, cells)
    return 0.5 + seed + spread * torch.randn(shape, generator=generator, dtype=torch.float64)


def variance_over(c: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    return (c - c.mean(dims, keepdim=True)).square().mean(dims)


def seen(whitening: Whitening, c: torch.Tensor) -> torch.Tensor:
    """The variance of this batch, after it has entered the running average."""
    variance = whitening.variance_of(c, (2, 2))
    whitening.update(variance, (2, 2))
    return variance


def test_in_training_the_variance_is_over_batch_and_queries() -> None:
    c = features() + torch.tensor([0.0, 2.0, 4.0]).view(3, 1, 1, 1)
    whitening = Whitening("running", 2, (2, 2))
    assert whitening.variance((2, 2), 3) == "batch"
    torch.testing.assert_close(whitening.variance_of(c, (2, 2)), variance_over(c, (0, 2)), rtol=1e-12, atol=0)


def test_an_empty_batch_in_training_takes_the_running_average() -> None:
    whitening = Whitening("running", 2, (2, 2))
    assert torch.equal(whitening.variance((2, 2), 0), whitening.running_var.flatten(1))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_instance_variance_is_over_the_queries_of_an_image(training: bool) -> None:
    layer = AblationAttention(8, 2, whitening="instance").train(training)
    _, factor = layer.whiten_by(features(), (2, 2))
    torch.testing.assert_close(factor[..., 0], (variance_over(features(), (2,)) + 1e-5) ** -0.5, rtol=1e-12, atol=0)


def test_full_factor_makes_the_covariance_the_identity() -> None:
    c = features() @ torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    layer = AblationAttention(8, 2, whitening="full")
    layer.whitening.eps = 1e-10
    _, factor = layer.whiten_by(c, (2, 2))
    whitened = c @ factor
    centred = whitened - whitened.mean(-2, keepdim=True)
    covariance = centred.mT @ centred / c.shape[-2]
    torch.testing.assert_close(covariance, torch.eye(4, dtype=torch.float64).expand(3, 2, 4, 4), rtol=0, atol=1e-6)
    torch.testing.assert_close(factor, factor.mT, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["running", "instance"])
def test_diagonal_factors_make_unit_variance(kind: str) -> None:
    layer, c = AblationAttention(8, 2, whitening=kind), features()
    layer.whitening.eps = 1e-12
    _, factor = layer.whiten_by(c, (2, 2))
    dims = (0, 2) if kind == "running" else (2,)
    torch.testing.assert_close(variance_over(c * factor.mT, dims), torch.ones_like(variance_over(c, dims)))


def test_statistics_stay_in_float32_under_autocast() -> None:
    """Also where the map is resized, both when it is read and when it is fed."""
    whitening = Whitening("running", 2, (7, 7))
    whitening.running_var.uniform_(1e-4, 1e-1)
    expected, variance = whitening.eval().variance((2, 3), 1), torch.rand(2, 6)
    twin = copy.deepcopy(whitening)
    whitening.update(variance, (2, 3))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(twin.variance((2, 3), 1), expected)
        twin.update(variance, (2, 3))
    assert torch.equal(twin.running_var, whitening.running_var)


def test_running_average_is_cumulative_first_and_exponential_later() -> None:
    whitening = Whitening("running", 2, (2, 2), momentum=0.25).double()
    batches, expected = [], None
    for step in range(8):
        c = features(seed=step)
        seen(whitening, c)
        batches.append(variance_over(c, (0, 2)).view(2, 2, 2))
        expected = torch.stack(batches).mean(0) if step < 4 else 0.75 * expected + 0.25 * batches[-1]
        torch.testing.assert_close(whitening.running_var, expected, rtol=1e-6, atol=0)
    assert whitening.num_batches_tracked.item() == 8


def test_evaluation_uses_the_running_average_and_leaves_it() -> None:
    layer, x = build(grid=3), tokens((6, 5))
    layer(x, (6, 5))
    before = {key: value.clone() for key, value in layer.whitening.state_dict().items()}
    layer.eval()(x, (6, 5))
    found = layer.whitening.variance((3, 3), 2)
    assert torch.equal(found, before["running_var"].flatten(1))
    assert torch.equal(found, layer.whitening.variance_of(features(cells=9), (3, 3)))
    assert all(torch.equal(value, before[key]) for key, value in layer.whitening.state_dict().items())


def test_smaller_grids_use_the_averaged_map_and_feed_it() -> None:
    whitening = Whitening("running", 2, (4, 4)).double()
    whitening.running_var.copy_(torch.rand(2, 4, 4))
    averaged = F.avg_pool2d(whitening.running_var, 2).flatten(1)
    torch.testing.assert_close(whitening.eval().variance((2, 2), 1), averaged)

    c = features()
    seen(whitening.train(), c)
    repeated = variance_over(c, (0, 2)).view(2, 2, 2).repeat_interleave(2, 1).repeat_interleave(2, 2)
    torch.testing.assert_close(whitening.running_var, repeated)
    torch.testing.assert_close(resize(repeated, (2, 2)).flatten(1), variance_over(c, (0, 2)))


@pytest.mark.parametrize("size", [(7, 7), (5, 6), (2, 9)], ids=str)
def test_after_many_equal_batches_evaluation_approaches_training(size: tuple[int, int]) -> None:
    """Also where the token grid is not finer than the landmarks' and their map has to be resized both ways."""
    layer, x = build(grid=7), tokens(size, batch=4)
    for _ in range(30):
        trained = layer.train()(x, size)
    gap = (layer.eval()(x, size) - trained).abs().max() / trained.abs().max()
    assert gap < (1e-10 if size == (7, 7) else 0.1)
    fresh = build(grid=7).eval()(x, size)
    assert (fresh - trained).abs().max() > 1e-2


def test_state_dict_round_trip_keeps_evaluation() -> None:
    layer, x = build(grid=3), tokens((6, 5))
    layer(x, (6, 5))
    twin = build(seed=5, grid=3)
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin.eval()(x, (6, 5)), layer.eval()(x, (6, 5)))
    assert twin.whitening.num_batches_tracked.item() == 1
    assert not [key for key in build(whitening="instance").state_dict() if key.startswith("whitening")]


def test_gradient_flows_through_the_batch_variance() -> None:
    """Finite differences of one entry of C on the factor alone: a detached variance would give 0."""
    c = features(batch=2, queries=5).requires_grad_()
    for kind in ("running", "instance", "full"):
        layer = AblationAttention(8, 2, whitening=kind)
        assert torch.autograd.gradcheck(lambda c, layer=layer: layer.whiten_by(c, (2, 2))[1], (c,))
        layer.whiten_by(c, (2, 2))[1].sum().backward()
        assert c.grad.abs().max() > 1e-3
        c.grad = None


def test_the_running_average_holds_no_graph() -> None:
    layer = build(grid=3)
    layer(tokens((4, 4)).requires_grad_(), (4, 4))
    assert not layer.whitening.running_var.requires_grad


def test_paused_updates_leave_the_running_average() -> None:
    layer, x = build(grid=3), tokens((4, 4))
    before = layer.whitening.running_var.clone()
    other = build(grid=3)
    with paused_updates(layer):
        paused = layer(x, (4, 4))
        layer(x, (4, 4))
        other(x, (4, 4))
    assert other.whitening.num_batches_tracked.item() == 1, "another layer's statistics go on"
    assert torch.equal(layer.whitening.running_var, before)
    assert layer.whitening.num_batches_tracked.item() == 0
    assert torch.equal(layer(x, (4, 4)), paused), "the output does not depend on the update"
    assert layer.whitening.num_batches_tracked.item() == 1


def test_a_batch_that_is_not_finite_leaves_the_running_average_finite() -> None:
    layer, x = build(grid=3), tokens((4, 4))
    before = layer.whitening.running_var.clone()
    layer(torch.full_like(x, torch.nan), (4, 4))
    assert torch.equal(layer.whitening.running_var, before)
    assert layer.eval()(x, (4, 4)).isfinite().all()


@pytest.mark.parametrize(("form", "side"), [({"grid": None, "ratio": 2}, 14), ({"grid": None}, 7), ({"grid": 4}, 8)])
def test_every_form_keeps_one_number_per_landmark(form: dict[str, Any], side: int) -> None:
    """Evaluation whitens as training did, also where tokens differ from position to position."""
    layer, size = build(**form), (side, side)
    x = tokens(size) * torch.linspace(0.1, 3, side**2, dtype=torch.float64)[:, None]
    trained = layer(x, size)
    torch.testing.assert_close(layer.eval()(x, size), trained)


def test_updates_resume_after_an_error() -> None:
    layer = build(grid=3)
    with pytest.raises(RuntimeError, match="inside"), paused_updates(layer):
        raise RuntimeError("inside")
    layer(tokens((4, 4)), (4, 4))
    assert layer.whitening.num_batches_tracked.item() == 1


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="Whitening: eps must be"):
        Whitening("running", 2, (2, 2), eps=0.0)
    with pytest.raises(ValueError, match="LaplacianAttention: whitening must be one of"):
        LaplacianAttention(8, 2, whitening="instance")
    with pytest.raises(ValueError, match="AblationAttention: whitening must be one of"):
        AblationAttention(8, 2, whitening="batch")


def test_update_bn_of_torch_sets_the_running_variance_to_the_mean_of_its_batches() -> None:
    """`swa_utils.update_bn` finds batch norm by its type; averaged weights need statistics of their own."""
    layer, size = LaplacianAttention(32, 2, grid=3), (5, 4)
    batches = [torch.randn(2, 20, 32, generator=torch.Generator().manual_seed(seed)) for seed in range(25)]
    variances = []
    for batch in batches:
        alone = copy.deepcopy(layer)
        alone.train()(batch, size)
        variances.append(alone.whitening.running_var)
    layer.train()(100 * batches[0], size)  # other statistics, which are forgotten

    class OnGrid(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x, size)

    model = OnGrid().eval()
    torch.optim.swa_utils.update_bn(batches, model)
    torch.testing.assert_close(layer.whitening.running_var, torch.stack(variances).mean(0))
    assert layer.whitening.num_batches_tracked == 25
    assert not model.training
    before = layer.whitening.running_var.clone()
    layer.train()(batches[0], size)
    expected = before.lerp(variances[0], 0.1)
    torch.testing.assert_close(layer.whitening.running_var, expected)


def test_models_whose_batch_norms_were_converted_still_train() -> None:
    layer = LaplacianAttention(32, 2).train()
    expected = copy.deepcopy(layer)
    converted = torch.nn.SyncBatchNorm.convert_sync_batchnorm(layer)
    x = torch.randn(2, 81, 32)
    assert torch.equal(converted(x, (9, 9)), expected(x, (9, 9)))
    assert torch.equal(converted.whitening.running_var, expected.whitening.running_var)
