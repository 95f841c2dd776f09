"""The lists that the fused attention of the C++ extension is given have a fixed length each, and it says which."""

import pytest
import torch

from laplacianformer import ops
from laplacianformer.ops._cpu_extension import level

SIZES, NUMBERS = [1, 4, 4, 1, 2, 2, 0, 6], [1.0, 8.0, 1e-2, 1e-5]

pytestmark = pytest.mark.skipif(ops.backends()["cpu"] is not None, reason="no C++ extension")


def evaluate(rotations=(), sizes=SIZES, numbers=NUMBERS):
    q, k, v = torch.randn(3, 1, 2, 16, 8)
    return torch.ops.laplacianformer_cpu.attention_evaluate(
        q, k, v, None, None, None, list(rotations), sizes, numbers, level()
    )


def test_lists_of_the_right_length_are_taken():
    assert evaluate().shape == (1, 2, 16, 8)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rotations": [torch.ones(16, 4)] * 2}, "2 tables of rotations, expected 0 or 4"),
        ({"sizes": SIZES[:4]}, "4 sizes, expected lengths, cells, prefix and iterations"),
        ({"numbers": [*NUMBERS, 0.0]}, "5 numbers, expected gain, scale, eps and variance_eps"),
    ],
)
def test_lists_of_another_length_are_refused(given, message):
    with pytest.raises(RuntimeError, match=message):
        evaluate(**given)


def test_another_number_of_saved_tensors_is_refused():
    q, k, v = torch.randn(3, 1, 2, 16, 8)
    op = torch.ops.laplacianformer_cpu
    _, variance, saved = op.attention_forward(q, k, v, None, None, [], SIZES, NUMBERS, level())
    with pytest.raises(RuntimeError, match="7 saved tensors, expected 8"):
        op.attention_backward(q, q, k, v, None, variance, saved[1:], None, [], SIZES, NUMBERS, level())
