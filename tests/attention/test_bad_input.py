"""Bad input is refused with what was given and what is expected."""

import inspect
from typing import Any

import pytest
import torch

from laplacianformer.attention import AblationAttention, LaplacianAttention, SoftmaxAttention

from .oracle import layer_class


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 30, "num_heads": 4}, r"multiple of num_heads, got dim=30, num_heads=4"),
        ({"num_heads": 0}, r"multiple of num_heads, got dim=32, num_heads=0"),
        ({"dim": 0}, r"multiple of num_heads, got dim=0"),
        ({"dim": 12, "num_heads": 2}, r"head width divisible by 4, got 6: pass rope=False"),
        ({"ratio": 4}, r"grid or ratio, not both: got grid=auto, ratio=4 \(pass grid=None\)"),
        ({"grid": 0}, r"grid must be at least 1, got 0"),
        ({"grid": None, "ratio": -1}, r"ratio must be at least 1, got -1"),
        ({"kernel": "linear"}, r"kernel must be one of 'laplacian', 'gaussian', .*'polynomial', got 'linear'"),
        ({"gram": "queries"}, r"gram must be one of 'keys', 'cross', got 'queries'"),
        ({"solver": "svd"}, r"solver must be one of 'newton_schulz', .*, got 'svd'"),
        ({"landmarks": "kmeans"}, r"landmarks must be one of 'pool', 'conv', got 'kmeans'"),
        ({"whitening": "batch"}, r"must be one of 'running', 'synced', None, got 'batch'"),
        ({"scale": 0}, r"scale must be greater than 0, got 0"),
        ({"scale": float("nan")}, r"scale must be finite, got nan"),
        ({"eps": 0.0}, r"eps must be greater than 0, got 0"),
        ({"eps": -1e-3}, r"eps must be greater than 0, got -0.001"),
        ({"iterations": 0}, r"iterations must be at least 1, got 0"),
        ({"gain": float("inf")}, r"gain must be finite, got inf"),
    ],
    ids=str,
)
def test_bad_values_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer_class(arguments)(**{"dim": 32, "num_heads": 2, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": "4"}, r"scale must be a number, got str"),
        ({"iterations": 6.0}, r"iterations must be an integer, got float"),
        ({"gain": "learnt"}, r"gain must be a number.*, got str"),
        ({"eps": None}, r"eps must be a number, got NoneType"),
        ({"grid": 2.5}, r"grid must be an integer.*, got float"),
        ({"grid": None, "ratio": 2.0}, r"ratio must be an integer.*, got float"),
        ({"heads": 3}, r"unexpected keyword argument 'heads'"),
    ],
    ids=str,
)
def test_bad_types_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        layer_class(arguments)(**{"dim": 32, "num_heads": 2, **arguments})


@pytest.mark.parametrize("kind", [LaplacianAttention, SoftmaxAttention])
@pytest.mark.parametrize(
    ("shape", "size", "message"),
    [
        ((2, 12, 16), (3, 4), r"expected tokens of shape \(B, N, 32\), got \(2, 12, 16\)"),
        ((12, 32), (3, 4), r"expected tokens of shape \(B, N, 32\), got \(12, 32\)"),
        ((2, 3, 4, 32), (3, 4), r"expected tokens of shape \(B, N, 32\), got \(2, 3, 4, 32\)"),
        ((2, 12, 32), (3, 5), r"size \(3, 5\) does not hold 12 tokens"),
        ((2, 12, 32), (-3, -4), r"size \(-3, -4\) does not hold 12 tokens"),
        ((2, 0, 32), (0, 5), r"size \(0, 5\) does not hold 0 tokens: expected H \* W of them, no length below 1"),
    ],
    ids=str,
)
def test_tokens_that_do_not_fit_are_refused(kind: Any, shape: tuple[int, ...], size: Any, message: str) -> None:
    layer = kind(32, 2)
    with pytest.raises(ValueError, match=message):
        layer(torch.zeros(shape), size)


def test_looking_inside_refuses_the_same() -> None:
    with pytest.raises(ValueError, match=r"size \(2, 5\) does not hold 12 tokens"):
        LaplacianAttention(32, 2).factors(torch.zeros(1, 12, 32), (2, 5))


def test_the_layer_says_what_it_is() -> None:
    assert "laplacian, scale=4.0, ratio=2, gram=cross" in repr(
        AblationAttention(32, 2, grid=None, ratio=2, gram="cross")
    )
    assert "exact" in repr(AblationAttention(32, 2, grid=None))


@pytest.mark.parametrize("option", ["kernel", "gram", "solver", "ratio", "landmarks", "tied"])
def test_an_option_that_moved_names_the_layer_that_has_it(option):
    with pytest.raises(TypeError, match=f"LaplacianAttention does not take {option}: use AblationAttention"):
        LaplacianAttention(32, 1, **{option: 1})
    assert option in inspect.signature(AblationAttention).parameters


def test_sync_names_its_replacement_and_a_wrong_name_stays_pythons():
    for layer in (LaplacianAttention, AblationAttention):
        with pytest.raises(TypeError, match=f'{layer.__name__} does not take sync: use whitening="synced"'):
            layer(32, 1, sync=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'kernal'"):
        LaplacianAttention(32, 1, kernal="gaussian")
    assert "gain" in inspect.signature(LaplacianAttention).parameters
