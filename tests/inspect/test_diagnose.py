import math

import pytest
import timm
import torch

import laplacianformer


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
    assert names[0] in str(report)


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
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_rejects_a_model_without_laplacian_attention():
    with pytest.raises(ValueError, match="no LaplacianAttention"):
        laplacianformer.diagnose(nano(attention="softmax"), torch.randn(1, 3, 32, 32))
