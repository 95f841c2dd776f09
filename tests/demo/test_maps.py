"""Attention maps of the page: comparisons of queries and keys against layers that compare them so."""

import math

import pytest
import torch

from laplacianformer.attention import AblationAttention, LaplacianAttention, SoftmaxAttention
from laplacianformer.demo.layers import LayerInput, classify
from laplacianformer.demo.maps import compared_maps, own_map, trained_scale, with_scale
from laplacianformer.inspect._attention_matrix import attention_row, token_attention
from tests.demo.helpers import SIZE, layer_input
from tests.helpers import small_model
from tests.model.helpers import images

QUERY, SCALE = (3, 2), 1.7
INDEX = 3 * 6 + 2  # of the query


@pytest.fixture(params=[True, False], ids=["rope", "no rope"])
def entry(request):
    torch.manual_seed(1)
    layer = AblationAttention(16, 2, grid=None, scale=SCALE, rope=request.param)
    torch.nn.init.normal_(layer.qkv.weight, std=0.5)
    return layer_input(layer)


def twin(entry, kind, **options):
    """Another layer with the same projections."""
    layer = kind(16, 2, rope=entry.layer.rope, **options).double().eval()
    layer.qkv.load_state_dict(entry.layer.qkv.state_dict())
    return layer


@pytest.mark.parametrize("kernel", ["laplacian", "gaussian"])
def test_a_kernel_is_the_normalised_row_of_a_layer_that_is_built_with_it(entry, kernel):
    layer = twin(entry, AblationAttention, grid=None, scale=SCALE, kernel=kernel)
    row = layer.factors(entry.tokens, SIZE).c[0, :, INDEX]
    found = compared_maps(entry, QUERY, SCALE)[f"{kernel.capitalize()} kernel"]
    torch.testing.assert_close(found.flatten(1), row / row.sum(-1, keepdim=True))


def test_softmax_is_the_row_of_softmax_attention_at_every_lambda(entry):
    expected = attention_row(twin(entry, SoftmaxAttention), entry.tokens, SIZE, INDEX)[0]
    for scale in (0.5, 9.0):
        torch.testing.assert_close(compared_maps(entry, QUERY, scale)["softmax"].flatten(1), expected)


def test_without_positions_the_comparisons_are_their_formulas():
    layer = layer_input(LaplacianAttention(8, 1, rope=False))
    q, k, _ = (part[0, 0].tolist() for part in layer.layer.project(layer.tokens, SIZE))
    differences = [[a - b for a, b in zip(q[INDEX], key, strict=True)] for key in k]
    formulas = {
        "Laplacian kernel": [math.exp(-sum(map(abs, row)) / SCALE) for row in differences],
        "Gaussian kernel": [math.exp(-sum(x * x for x in row) / (2 * SCALE**2)) for row in differences],
        "softmax": [math.exp(sum(a * b for a, b in zip(q[INDEX], key, strict=True)) / math.sqrt(8)) for key in k],
    }
    for name, weights in compared_maps(layer, QUERY, SCALE).items():
        total = sum(formulas[name])
        assert weights.flatten().tolist() == pytest.approx([value / total for value in formulas[name]])


def test_a_lambda_for_which_every_kernel_is_zero_still_gives_weights(entry):
    single = LayerInput("a layer", entry.layer.float(), 20 * entry.tokens.float(), SIZE)
    for weights in compared_maps(single, QUERY, 0.01).values():
        torch.testing.assert_close(weights.sum((1, 2)), torch.ones(2))


# ---- the model ----


def test_the_layers_own_map_is_that_of_predict():
    model, image = small_model(), images(32, batch=1)[0]
    _, entries = classify(model, image)
    for entry, expected in zip(entries, token_attention(model, image, (0.3, 0.6)), strict=True):
        query = entry.token((0.3, 0.6))
        assert query == expected.query
        found = own_map(entry, query, trained_scale(model))
        torch.testing.assert_close(found, expected.weights.float(), rtol=1e-3, atol=1e-5)


def test_another_lambda_is_what_a_model_built_with_it_does_and_the_model_is_left_as_it_is():
    image = images(32, batch=1)
    model, built = small_model(), small_model(attention_args={"scale": 9.0})
    before = model(image)
    torch.testing.assert_close(with_scale(model, 9.0)(image), built(image))
    _, (entry, _) = classify(model, image[0])
    expected = attention_row(built.stages[0].blocks[0].attention, entry.tokens, entry.size, 37)[0]
    torch.testing.assert_close(own_map(entry, (2, 5), 9.0).flatten(1), expected)
    assert trained_scale(model) == 4.0
    assert torch.equal(model(image), before)


def test_a_mixer_without_lambda_is_left_as_it_is():
    model, image = small_model(attention="softmax"), images(32, batch=1)
    assert trained_scale(model) is None
    assert torch.equal(with_scale(model, 9.0)(image), model(image))
    _, (entry, _) = classify(model, image[0])
    assert entry.landmarks is None
    own, compared = own_map(entry, (2, 5), 9.0), compared_maps(entry, (2, 5), 9.0)
    torch.testing.assert_close(own, compared["softmax"], rtol=1e-4, atol=1e-6)
