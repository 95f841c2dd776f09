"""The numbers behind the page: ways to compare queries and keys against the layers that do so, and times."""

import math
import time

import pytest
import torch

from laplacianformer.attention import LaplacianAttention, SoftmaxAttention
from laplacianformer.demo import looking
from laplacianformer.inspect.attention_maps import attention_maps, attention_row
from tests.helpers import small_model
from tests.model.helpers import images

SIZE, QUERY, SCALE = (5, 6), (3, 2), 1.7
PLACE = 3 * 6 + 2


def entry_of(layer):
    torch.manual_seed(0)
    tokens = torch.randn(1, math.prod(SIZE), layer.dim, dtype=torch.float64)
    return looking.Entry("a layer", layer.double().eval(), tokens, SIZE)


@pytest.fixture(params=[True, False], ids=["rope", "no rope"])
def entry(request):
    torch.manual_seed(1)
    layer = LaplacianAttention(16, 2, grid=None, scale=SCALE, rope=request.param)
    torch.nn.init.normal_(layer.qkv.weight, std=0.5)
    return entry_of(layer)


def twin(entry, kind, **options):
    """Another layer with the same projections."""
    layer = kind(16, 2, rope=entry.layer.rope, **options).double().eval()
    layer.qkv.load_state_dict(entry.layer.qkv.state_dict())
    return layer


@pytest.mark.parametrize("kernel", ["laplacian", "gaussian"])
def test_a_kernel_is_the_normalised_row_of_a_layer_that_is_built_with_it(entry, kernel):
    layer = twin(entry, LaplacianAttention, grid=None, scale=SCALE, kernel=kernel)
    row = layer.factors(entry.tokens, SIZE).c[0, :, PLACE]
    found = looking.compared(entry, QUERY, SCALE)[f"{kernel.capitalize()} kernel"]
    torch.testing.assert_close(found.flatten(1), row / row.sum(-1, keepdim=True))


def test_softmax_is_the_row_of_softmax_attention_at_every_lambda(entry):
    expected = attention_row(twin(entry, SoftmaxAttention), entry.tokens, SIZE, PLACE)[0]
    for scale in (0.5, 9.0):
        torch.testing.assert_close(looking.compared(entry, QUERY, scale)["softmax"].flatten(1), expected)


def test_without_positions_the_ways_are_their_formulas():
    layer = entry_of(LaplacianAttention(8, 1, rope=False))
    q, k, _ = (part[0, 0].tolist() for part in layer.layer.project(layer.tokens, SIZE))
    differences = [[a - b for a, b in zip(q[PLACE], key, strict=True)] for key in k]
    formulas = {
        "Laplacian kernel": [math.exp(-sum(map(abs, row)) / SCALE) for row in differences],
        "Gaussian kernel": [math.exp(-sum(x * x for x in row) / (2 * SCALE**2)) for row in differences],
        "softmax": [math.exp(sum(a * b for a, b in zip(q[PLACE], key, strict=True)) / math.sqrt(8)) for key in k],
    }
    for name, weights in looking.compared(layer, QUERY, SCALE).items():
        total = sum(formulas[name])
        assert weights.flatten().tolist() == pytest.approx([value / total for value in formulas[name]])


def test_a_lambda_for_which_every_kernel_is_zero_still_gives_weights(entry):
    single = looking.Entry("a layer", entry.layer.float(), 20 * entry.tokens.float(), SIZE)
    for weights in looking.compared(single, QUERY, 0.01).values():
        torch.testing.assert_close(weights.sum((1, 2)), torch.ones(2))


# ---- the model ----


def test_looking_gives_the_classes_and_what_enters_each_layer_and_leaves_nothing_behind():
    model, image = small_model(depths=(2, 1)), images(32, batch=1)[0]
    probabilities, entries = looking.look(model, image)
    torch.testing.assert_close(probabilities, model(image[None])[0].softmax(0))
    assert [(entry.name, entry.size) for entry in entries] == [
        ("stage 1, block 1", (16, 16)),
        ("stage 1, block 2", (16, 16)),
        ("stage 2, block 1", (8, 8)),
    ]
    assert [entry.landmarks for entry in entries] == [(7, 7)] * 3
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_the_layers_own_map_is_that_of_predict():
    model, image = small_model(), images(32, batch=1)[0]
    _, entries = looking.look(model, image)
    for entry, expected in zip(entries, attention_maps(model, image, (0.3, 0.6)), strict=True):
        query = entry.token((0.3, 0.6))
        assert query == expected.query
        found = looking.own(entry, query, looking.trained_scale(model))
        torch.testing.assert_close(found, expected.weights.float(), rtol=1e-3, atol=1e-5)


def test_another_lambda_is_what_a_model_built_with_it_does_and_the_model_stays():
    image = images(32, batch=1)
    model, built = small_model(), small_model(attention_args={"scale": 9.0})
    before = model(image)
    torch.testing.assert_close(looking.with_scale(model, 9.0)(image), built(image))
    _, (entry, _) = looking.look(model, image[0])
    expected = attention_row(built.stages[0].blocks[0].attention, entry.tokens, entry.size, 37)[0]
    torch.testing.assert_close(looking.own(entry, (2, 5), 9.0).flatten(1), expected)
    assert looking.trained_scale(model) == 4.0
    assert torch.equal(model(image), before)


def test_a_mixer_without_lambda_is_left_as_it_is():
    model, image = small_model(attention="softmax"), images(32, batch=1)
    assert looking.trained_scale(model) is None
    assert torch.equal(looking.with_scale(model, 9.0)(image), model(image))
    _, (entry, _) = looking.look(model, image[0])
    assert entry.landmarks is None
    own, ways = looking.own(entry, (2, 5), 9.0), looking.compared(entry, (2, 5), 9.0)
    torch.testing.assert_close(own, ways["softmax"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("place", "token"), [((0, 0), (0, 0)), ((1, 1), (4, 5)), ((0.5, 0.5), (2, 3)), ((0.99, 0.1), (0, 5))]
)
def test_a_place_is_in_the_token_that_covers_it(place, token):
    assert entry_of(LaplacianAttention(16, 2)).token(place) == token


# ---- time ----


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"grid": 3}, {"projections", "landmarks", "kernel", "inverse", "product", "convolution", "whole layer"}),
        ({"grid": None}, {"projections", "landmarks", "product", "convolution", "whole layer"}),
    ],
)
def test_a_layer_has_the_times_of_its_parts(options, parts, monkeypatch):
    monkeypatch.setattr(looking, "SECONDS", 0)
    times = looking.layer_times(entry_of(LaplacianAttention(16, 2, **options)))
    assert times.keys() == parts
    assert min(times.values()) > 0


def test_another_mixer_has_the_time_of_its_mixing(monkeypatch):
    monkeypatch.setattr(looking, "SECONDS", 0)
    times = looking.layer_times(entry_of(SoftmaxAttention(16, 2)))
    assert times.keys() == {"projections", "mixing", "convolution", "whole layer"}


def test_time_is_counted_where_it_is_spent(monkeypatch):
    monkeypatch.setattr(looking, "SECONDS", 0)
    entry = entry_of(LaplacianAttention(16, 2, grid=3))
    solve = entry.layer.solve
    monkeypatch.setattr(entry.layer, "solve", lambda *arguments: (time.sleep(0.05), solve(*arguments))[1])
    times = looking.layer_times(entry)
    assert times["inverse"] >= 50
    assert times["whole layer"] >= 50
    assert times["convolution"] < 50
    assert times["kernel"] < 50


def test_the_model_has_the_times_of_its_stages_and_head(monkeypatch):
    monkeypatch.setattr(looking, "SECONDS", 0)
    model = small_model()
    stage = model.stages[1]
    forward = stage.forward
    monkeypatch.setattr(stage, "forward", lambda x: (time.sleep(0.05), forward(x))[1])
    times = looking.model_times(model, images(32, batch=1)[0])
    assert times.keys() == {"stage 1", "stage 2", "norm and head"}
    assert times["stage 2"] >= 50 > times["norm and head"]
