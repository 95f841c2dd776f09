import math

import pytest
import torch

from laplacianformer import ops
from tests.ops.helpers import assert_matches, leaves

SCALE = 3.0


def matern(x, y):
    r = math.sqrt(3) * (x[..., :, None, :] - y[..., None, :, :]).square().sum(-1).sqrt() / SCALE
    return (1 + r) * (-r).exp()


def polynomial(x, y):
    return (1 + (x[..., :, None, :] * y[..., None, :, :]).sum(-1) / SCALE**2) ** 2


def cosine(x, y):
    return torch.nn.functional.cosine_similarity(x[..., :, None, :], y[..., None, :, :], dim=-1)


KERNELS = {
    "matern": (ops.matern_kernel, matern),
    "polynomial": (ops.polynomial_kernel, polynomial),
    "cosine": (ops.cosine_kernel, cosine),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_values_and_gradients_match_the_definition(name, dtype) -> None:
    kernel, definition = KERNELS[name]
    inputs = leaves((2, 3, 17, 8), (2, 3, 5, 8), dtype=dtype)
    assert_matches(lambda x, y: kernel(x, y, SCALE), definition, inputs, terms=67)


@pytest.mark.parametrize("name", KERNELS)
def test_positive_semi_definite_and_finite_gradients_where_points_are_equal_or_zero(name) -> None:
    kernel, _ = KERNELS[name]
    x = torch.randn(20, 4, dtype=torch.float64)
    x[1], x[2] = x[0], 0
    x.requires_grad_()
    w = kernel(x, x, SCALE)
    assert torch.linalg.eigvalsh(w.detach()).min() > -1e-6
    w.sum().backward()
    assert x.grad.isfinite().all()


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="matern_kernel"):
        ops.matern_kernel(torch.randn(3, 2), torch.randn(3, 4), SCALE)
    with pytest.raises(ValueError, match="cosine_kernel"):
        ops.cosine_kernel(torch.randn(3, 2), torch.randn(3, 2), -1.0)
