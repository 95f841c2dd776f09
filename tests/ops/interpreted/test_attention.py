"""A whole layer on the triton backend, in the interpreter."""

import math

import pytest
import torch

from laplacianformer import LaplacianAttention, ops

pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")


@pytest.mark.parametrize("training", [True, False])
def test_a_layer_equals_the_reference_forward_and_backward(training):
    results = []
    for backend in ("triton", "reference"):
        torch.manual_seed(0)
        layer = LaplacianAttention(8, 2, grid=2).train(training)
        x = torch.randn(1, 12, 8, requires_grad=True)
        with ops.use_backend(backend):
            out = layer(x, (3, 4))
            out.square().sum().backward()
        results.append([out, x.grad, *(parameter.grad for parameter in layer.parameters())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * max(1.0, float(b.detach().abs().max())))


@pytest.mark.parametrize(("axes", "size"), [(1, (9,)), (2, (3, 3)), (3, (2, 2, 3))])
def test_every_grid_with_a_mask_and_leading_tokens_equal_the_reference(axes, size):
    results = []
    for backend in ("triton", "reference"):
        torch.manual_seed(0)
        layer, tokens = LaplacianAttention(24, 2, axes=axes, grid=2, prefix=1), 1 + math.prod(size)
        x, mask = torch.randn(2, tokens, 24, requires_grad=True), torch.ones(2, tokens, dtype=torch.bool)
        mask[1, -2:] = False
        with ops.use_backend(backend):
            out = layer(x, size, mask)
            out.square().sum().backward()
        results.append([out, x.grad, *(parameter.grad for parameter in layer.parameters())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * max(1.0, float(b.detach().abs().max())))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning")
def test_opcheck():
    x, y, w = torch.randn(3, 2).requires_grad_(), torch.randn(4, 2).requires_grad_(), torch.eye(3).requires_grad_()
    library, checks = torch.ops.laplacianformer, ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(library.laplacian_kernel.default, (x, y, None, None, 4.0, "triton"), test_utils=checks)
    torch.library.opcheck(library.laplacian_matmul.default, (x, y, y, None, None, 4.0, "triton"), test_utils=checks)
    torch.library.opcheck(library.newton_schulz.default, (w, 1, 1e-2, "identity", "exact", "triton"), test_utils=checks)
