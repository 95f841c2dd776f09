import math

import pytest
import timm
import torch

import laplacianformer
from laplacianformer.inspect import without_attention


def nano(**arguments):
    torch.manual_seed(0)
    return timm.create_model("laplacianformer_nano", num_classes=10, **arguments)


def test_one_healthy_row_per_layer_in_order():
    model = nano().eval()
    report = laplacianformer.diagnose(model, torch.randn(2, 3, 64, 64))
    names = [name for name, module in model.named_modules() if name.endswith(".attention")]
    assert [row.layer for row in report] == names
    assert [(row.tokens, row.landmarks) for row in report[::2]] == [(1024, 49), (256, 49), (64, 49), (16, 16)]
    for row in report:
        assert 0.01 < row.kernel_mean < 0.9
        assert 0 < row.kernel_spread < 0.5
        assert row.condition >= 1
        assert row.not_finite == 0
        assert 0 < row.query_dependence < 1
        assert 0 < row.contribution < 1
    assert names[0] in str(report)
    assert "…" not in str(report)


def test_a_kernel_of_one_number_has_no_spread():
    """One image, one head, one token: the standard deviation is not that of a sample."""
    model = nano(embed_dims=(32, 32, 32, 32), num_heads=(1, 1, 1, 1)).eval()
    report = laplacianformer.diagnose(model, torch.randn(1, 3, 8, 8))
    assert (report[-1].tokens, report[-1].kernel_spread) == (1, 0)


def test_residual_and_condition_are_those_of_the_layer():
    few = laplacianformer.diagnose(nano(attention_args={"iterations": 1}).eval(), torch.randn(2, 3, 64, 64))
    many = laplacianformer.diagnose(nano(attention_args={"iterations": 30}).eval(), torch.randn(2, 3, 64, 64))
    assert few[0].residual > 0.5
    assert many[0].residual < 1e-2
    assert few[-1].residual == 0  # every token is a landmark: nothing is solved


def test_shows_where_numbers_stop_being_finite():
    model = nano().eval()
    with torch.no_grad():
        model.stages[1].blocks[0].attention.qkv.weight[0] = math.nan
    report = laplacianformer.diagnose(model, torch.randn(1, 3, 32, 32))
    broken = [row.not_finite > 0 for row in report]
    assert broken == [False, False, True, True, True, True, True]
    assert math.isnan(report[3].condition)


def test_changes_nothing_even_in_training_mode():
    model = nano().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    laplacianformer.diagnose(model, torch.randn(2, 3, 32, 32))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    for module in model.modules():
        assert not module._forward_pre_hooks
        assert not module._forward_hooks
        assert "mix" not in vars(module)


def test_rejects_a_model_without_laplacian_attention():
    with pytest.raises(ValueError, match="no LaplacianAttention"):
        laplacianformer.diagnose(nano(attention="softmax"), torch.randn(1, 3, 32, 32))


class Residual(torch.nn.Module):
    """A pre-norm block without its MLP, as timm writes it: with a layer scale, and attention in a wrapper."""

    def __init__(self, scale):
        super().__init__()
        self.attention = laplacianformer.LaplacianAttention(16, 1, axes=1)
        self.norm1, self.ls1 = torch.nn.LayerNorm(16), torch.nn.Identity()
        self.ls1.forward = lambda x: scale * x

    def forward(self, x, mask=None):
        return x + self.ls1(self.attention(self.norm1(x), (x.shape[1],), mask=mask))


def test_the_branch_is_measured_by_what_it_adds_to_the_stream():
    """Against the difference that switching the branch off makes to the output of the block."""
    torch.manual_seed(0)
    x = torch.randn(2, 9, 16)
    contributions = []
    for scale in (1.0, 0.5):
        torch.manual_seed(1)
        block = Residual(scale).eval()
        (row,) = laplacianformer.diagnose(block, x)
        out = block(x)
        with without_attention(block, "off"):
            added = out - block(x)
        assert row.contribution == pytest.approx((added.norm() / out.norm()).item(), rel=1e-4)
        contributions.append(row.contribution * out.norm().item())
    assert contributions[1] == pytest.approx(contributions[0] / 2, rel=1e-4)


def test_a_branch_that_is_a_mean_depends_on_no_query():
    torch.manual_seed(0)
    x = torch.randn(2, 9, 16)
    block = Residual(1.0).eval()
    (row,) = laplacianformer.diagnose(block, x)
    with without_attention(block, "mean"):
        (mean,) = laplacianformer.diagnose(block, x)
    assert mean.query_dependence < 1e-6 < 0.01 < row.query_dependence
    ratio = (mean.contribution / row.contribution) ** 2  # the projection keeps no lengths, so roughly
    assert row.query_dependence**2 == pytest.approx(1 - ratio, abs=0.2)


def test_padding_changes_nothing():
    torch.manual_seed(0)
    x = torch.randn(1, 9, 16)
    block = Residual(1.0).eval()
    padded = torch.cat([x, torch.full((1, 4, 16), 9.0)], dim=1)

    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = block

        def forward(self, x):
            return self.block(x, torch.arange(13)[None] < 9)

    (alone,), (with_padding,) = laplacianformer.diagnose(block, x), laplacianformer.diagnose(Masked(), padded)
    for name in ("query_dependence", "contribution", "kernel_mean"):
        assert getattr(with_padding, name) == pytest.approx(getattr(alone, name), rel=1e-4)
