"""Rows of the attention matrix: times the values, they are what the layer computes."""

import pytest
import torch

from laplacianformer._util.errors import InputError
from laplacianformer.attention import ATTENTIONS, AblationAttention, LaplacianAttention, SoftmaxAttention
from laplacianformer.inspect import _attention_matrix as attention_matrix
from laplacianformer.inspect._attention_matrix import attention_row, token_attention
from tests.helpers import small_model
from tests.model.helpers import images


def layer_and_tokens(kind, size, **options):
    torch.manual_seed(0)
    layer = kind(16, 2, **options).double().eval()
    return layer, torch.randn(2, size[0] * size[1], 16, dtype=torch.float64)


CASES = [
    (LaplacianAttention, {}),
    (AblationAttention, {"grid": 3, "whitening": "instance"}),
    (AblationAttention, {"grid": 3, "whitening": "full", "gain": 2.0}),
    (AblationAttention, {"grid": 3, "gram": "cross", "solver": "cholesky"}),
    (AblationAttention, {"grid": 3, "solver": "conjugate_gradient", "iterations": 30}),
    (AblationAttention, {"grid": 3, "kernel": "gaussian", "landmarks": "conv"}),
    (LaplacianAttention, {"grid": 9}),
    (AblationAttention, {"grid": None}),
    *((kind, {}) for name, kind in ATTENTIONS.items() if name not in ("laplacian", "ablation")),
]


@pytest.mark.parametrize("most", [2**24, 500])
@pytest.mark.parametrize(("kind", "options"), CASES, ids=str)
def test_a_row_times_the_values_is_the_global_branch(monkeypatch, kind, options, most):
    monkeypatch.setattr(attention_matrix, "MOST_NUMBERS", most)
    size, query = (9, 8), 31
    layer, tokens = layer_and_tokens(kind, size, **options)
    row = attention_row(layer, tokens, size, query)
    q, k, v = layer.project(tokens, size)
    torch.testing.assert_close((row[:, :, None] @ v)[:, :, 0], layer.mix(q, k, v, size)[:, :, query])


@pytest.mark.parametrize(
    ("kind", "options"), [case for case in CASES if issubclass(case[0], LaplacianAttention)], ids=str
)
def test_a_row_is_that_of_z_inv_w_b(kind, options):
    size, query = (9, 8), 50
    layer, tokens = layer_and_tokens(kind, size, **options)
    dense = layer.factors(tokens, size, dense=True).dense
    torch.testing.assert_close(attention_row(layer, tokens, size, query), dense[:, :, query])


def test_a_row_in_float32_is_that_in_float64():
    size, query = (9, 8), 31
    layer, tokens = layer_and_tokens(LaplacianAttention, size, grid=3)
    expected = attention_row(layer, tokens, size, query)
    row = attention_row(layer.float(), tokens.float(), size, query)
    torch.testing.assert_close(row, expected.float(), rtol=1e-4, atol=1e-5)


def test_a_row_of_softmax_is_a_distribution():
    layer, tokens = layer_and_tokens(SoftmaxAttention, (5, 5))
    row = attention_row(layer, tokens, (5, 5), 12)
    torch.testing.assert_close(row.sum(-1), torch.ones_like(row[..., 0]))
    assert (row >= 0).all()


@pytest.mark.parametrize(
    ("point", "queries"),
    [
        ((0.5, 0.5), [(8, 8), (4, 4)]),
        ((0.0, 1.0), [(15, 0), (7, 0)]),
        ((1.0, 0.0), [(0, 15), (0, 7)]),
        ((0.3, 0.6), [(9, 4), (4, 2)]),
    ],
)
def test_a_token_attends_in_the_last_block_of_each_stage(point, queries):
    model, image = small_model(depths=(2, 1)), images(32, batch=1)[0]
    found = token_attention(model, image, point)
    assert [(layer.stage, layer.query) for layer in found] == [(1, queries[0]), (2, queries[1])]
    assert [tuple(layer.weights.shape) for layer in found] == [(1, 16, 16), (2, 8, 8)]
    seen = []
    last = model.double().stages[0].blocks[1].attention
    last.register_forward_pre_hook(lambda _, inputs: seen.append(inputs))
    model(image[None].double())
    (tokens, size), (row, column) = seen[0], queries[0]
    expected = last.factors(tokens, size, dense=True).dense[0, :, row * 16 + column]
    torch.testing.assert_close(found[0].weights.flatten(1), expected)


def test_inspecting_changes_nothing():
    model, image = small_model().train(), images(32, batch=1)[0]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    token_attention(model, image)
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_other_models_and_points_outside_are_rejected():
    with pytest.raises(InputError, match="not for Linear"):
        token_attention(torch.nn.Linear(1, 1), images(32)[0])
    with pytest.raises(InputError, match="must lie between 0,0"):
        token_attention(small_model(), images(32)[0], (0.5, 1.5))
