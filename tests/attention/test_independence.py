"""In evaluation one image's result does not depend on the others in its batch, bit for bit (reference backend)."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from laplacianformer import LaplacianAttention, ops

from .oracle import layer_class

SIZES = [(7, 7), (14, 14), (9, 5)]
WHITENINGS = ["running", "instance", "full", None]


@pytest.fixture(autouse=True)
def reference() -> Iterator[None]:
    with ops.use_backend("reference"), torch.no_grad():
        yield


def layer_and_tokens(size: tuple[int, int], **options: Any) -> tuple[LaplacianAttention, Tensor]:
    torch.manual_seed(0)
    return layer_class(options)(64, 2, **options).eval(), torch.randn(5, size[0] * size[1], 64)


OPTIONS: list[dict[str, Any]] = [
    *({"whitening": whitening} for whitening in WHITENINGS),
    {"solver": "cholesky"},
    {"solver": "conjugate_gradient"},
    {"gram": "cross", "solver": "cholesky"},
    {"kernel": "gaussian"},
    {"landmarks": "conv"},
]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("others", ["other images", "huge", "zero", "nan", "inf"])
def test_the_other_images_make_no_difference(others: str, options: dict[str, Any], size: tuple[int, int]) -> None:
    layer, x = layer_and_tokens(size, **options)
    alone = layer(x, size)[2]
    replaced = {
        "other images": torch.randn_like(x),
        "huge": 1e6 * x,
        "zero": torch.zeros_like(x),
        "nan": torch.full_like(x, torch.nan),
        "inf": torch.full_like(x, torch.inf),
    }[others]
    replaced[2] = x[2]
    assert torch.equal(layer(replaced, size)[2], alone)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_permuting_the_batch_permutes_the_outputs(options: dict[str, Any], size: tuple[int, int]) -> None:
    """To the bit by default. LAPACK (eigensolver, Cholesky) rounds differently at another alignment in memory."""
    layer, x = layer_and_tokens(size, **options)
    order = torch.tensor([3, 0, 4, 2, 1])
    if not torch.equal(layer.qkv(x[order]), layer.qkv(x)[order]):
        pytest.skip("a plain nn.Linear depends on the place in the batch here")
    out, permuted = layer(x, size), layer(x[order], size)
    if options.get("whitening") == "full" or options.get("solver") == "cholesky":
        torch.testing.assert_close(permuted, out[order], rtol=1e-4, atol=1e-4)
    else:
        assert torch.equal(permuted, out[order])


@pytest.mark.parametrize("whitening", WHITENINGS)
def test_the_same_input_gives_the_same_bits_again(whitening: Any) -> None:
    layer, x = layer_and_tokens((14, 14), whitening=whitening)
    assert torch.equal(layer(x, (14, 14)), layer(x, (14, 14)))


def test_in_training_the_batch_statistics_do_depend_on_the_others() -> None:
    """So the tests above can fail."""
    layer, x = layer_and_tokens((14, 14))
    other = torch.cat([x[:1], 2 * x[1:]])
    assert not torch.equal(layer.train()(x, (14, 14))[0], layer(other, (14, 14))[0])
