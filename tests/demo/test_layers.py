"""The attention layers of a model, and what one image brings to them."""

import pytest
import torch

from laplacianformer.attention import LaplacianAttention
from laplacianformer.demo.layers import classify
from tests.demo.helpers import layer_input
from tests.helpers import small_model
from tests.model.helpers import images


def test_the_classes_and_what_enters_each_layer_and_no_hooks_are_left():
    model, image = small_model(depths=(2, 1)), images(32, batch=1)[0]
    probabilities, entries = classify(model, image)
    torch.testing.assert_close(probabilities, model(image[None])[0].softmax(0))
    assert [(entry.name, entry.size) for entry in entries] == [
        ("stage 1, block 1", (16, 16)),
        ("stage 1, block 2", (16, 16)),
        ("stage 2, block 1", (8, 8)),
    ]
    assert [entry.landmarks for entry in entries] == [(7, 7)] * 3
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("point", "token"), [((0, 0), (0, 0)), ((1, 1), (4, 5)), ((0.5, 0.5), (2, 3)), ((0.99, 0.1), (0, 5))]
)
def test_a_point_is_in_the_token_that_covers_it(point, token):
    assert layer_input(LaplacianAttention(16, 2)).token(point) == token
