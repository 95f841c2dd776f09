"""Times of the parts of a model and of a layer."""

import time

import pytest

from laplacianformer import ops
from laplacianformer.attention import LaplacianAttention, SoftmaxAttention
from laplacianformer.demo import timing
from tests.demo.helpers import layer_input
from tests.helpers import small_model
from tests.model.helpers import images


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"grid": 3}, {"projections", "landmarks", "kernel", "inverse", "product", "convolution", "whole layer"}),
        ({"grid": 9}, {"projections", "landmarks", "product", "convolution", "whole layer"}),
    ],
)
def test_a_layer_has_the_times_of_its_parts(options, parts, monkeypatch):
    monkeypatch.setattr(timing, "SECONDS", 0)
    times = timing.layer_times(layer_input(LaplacianAttention(16, 2, **options)))
    assert times.keys() == parts
    assert min(times.values()) > 0


def test_another_mixer_has_the_time_of_its_mixing(monkeypatch):
    monkeypatch.setattr(timing, "SECONDS", 0)
    times = timing.layer_times(layer_input(SoftmaxAttention(16, 2)))
    assert times.keys() == {"projections", "mixing", "convolution", "whole layer"}


def test_time_is_attributed_to_the_part_that_spends_it(monkeypatch):
    monkeypatch.setattr(timing, "SECONDS", 0)
    entry = layer_input(LaplacianAttention(16, 2, grid=3))
    solve = ops.newton_schulz
    monkeypatch.setattr(ops, "newton_schulz", lambda *given, **more: (time.sleep(0.05), solve(*given, **more))[1])
    times = timing.layer_times(entry)
    assert times["inverse"] >= 50
    assert times["convolution"] < 50
    assert times["kernel"] < 50


def test_the_model_has_the_times_of_its_stages_and_head(monkeypatch):
    monkeypatch.setattr(timing, "SECONDS", 0)
    model = small_model()
    stage = model.stages[1]
    forward = stage.forward
    monkeypatch.setattr(stage, "forward", lambda x: (time.sleep(0.05), forward(x))[1])
    times = timing.model_times(model, images(32, batch=1)[0])
    assert times.keys() == {"stage 1", "stage 2", "norm and head"}
    assert times["stage 2"] >= 50 > times["norm and head"]
