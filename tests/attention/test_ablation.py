"""AblationAttention with its default parts is LaplacianAttention: comparisons change one part and nothing else."""

import copy
from typing import Any

import pytest
import timm
import torch

from laplacianformer.attention import AblationAttention, LaplacianAttention

from .oracle import build, tokens

SHARED: list[dict[str, Any]] = [
    {},
    {"gain": "learned", "rope": False},
    {"whitening": None, "gain": 2.5},
    {"whitening": "synced", "scale": 1.3, "eps": 0.2, "iterations": 3},
]


def twins(**options: Any) -> tuple[LaplacianAttention, AblationAttention]:
    layer = build(grid=3, **options)
    twin = AblationAttention(layer.dim, layer.num_heads, grid=3, **options).double()
    twin.load_state_dict(copy.deepcopy(layer.state_dict()))
    return layer, twin


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("size", [(5, 7), (3, 3), (2, 9)], ids=str)
@pytest.mark.parametrize("options", SHARED, ids=str)
def test_the_default_parts_are_those_of_the_product(options: dict[str, Any], size: Any, training: bool) -> None:
    x, results = tokens(size), []
    for layer in twins(**options):
        given = x.clone().requires_grad_()
        out = layer.train(training)(given, size)
        out.square().sum().backward()
        gradients = [parameter.grad for parameter in layer.parameters()]
        results.append([out, given.grad, *gradients, *layer.buffers()])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_factors_are_the_same(training: bool) -> None:
    layer, twin = twins(gain=2.0)
    x, size = tokens((5, 7)), (5, 7)
    for found, expected in zip(
        twin.train(training).factors(x, size, dense=True),
        layer.train(training).factors(x, size, dense=True),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_both_layers_have_the_same_names_of_weights() -> None:
    layer, twin = twins()
    assert list(layer.state_dict()) == list(twin.state_dict())


def test_tied_queries_and_keys_share_a_projection() -> None:
    layer = AblationAttention(16, 2, tied=True)
    assert layer.qkv.weight.shape == (32, 16)
    queries, keys, _ = layer.project(torch.randn(1, 9, 16), (3, 3))
    assert queries is keys


@pytest.mark.parametrize(
    ("options", "kind", "whitening"),
    [
        ({}, LaplacianAttention, "running"),
        ({"sync": False, "gain": 2.0}, LaplacianAttention, "running"),
        ({"sync": True}, LaplacianAttention, "synced"),
        ({"sync": True, "whitening": None}, LaplacianAttention, None),
        ({"kernel": "gaussian"}, AblationAttention, "running"),
        ({"kernel": "laplacian", "ratio": None, "tied": False}, LaplacianAttention, "running"),
        ({"grid": None, "ratio": 2}, AblationAttention, "running"),
        ({"grid": None}, AblationAttention, "running"),
        ({"tied": True, "sync": True}, AblationAttention, "synced"),
        ({"whitening": "full"}, AblationAttention, None),
    ],
    ids=str,
)
def test_models_of_old_files_are_built_with_the_layer_that_has_their_options(
    options: dict[str, Any], kind: type[LaplacianAttention], whitening: str | None
) -> None:
    model = timm.create_model("laplacianformer_nano", attention_args=options)
    layer = model.stages[0].blocks[0].attention
    assert type(layer) is kind
    assert layer.whitening.kind == whitening
