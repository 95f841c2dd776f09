"""The `cpu` backend: the same bits on every run and for every number of threads, also from other threads."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from laplacianformer import ops

pytestmark = pytest.mark.skipif(ops.backends()["cpu"] is not None, reason=str(ops.backends()["cpu"]))

# (batch, N, M): few matrices with many rows on either side, and many small matrices.
SHAPES = [(1, 3136, 49), (1, 49, 3136), (2, 1000, 30), (40, 49, 49)]


def everything(batch: int, n: int, m: int) -> list[Tensor]:
    """Both ops and all their gradients."""
    generator = torch.Generator().manual_seed(0)
    x, y, values = (torch.randn(batch, r, w, generator=generator) for r, w in ((n, 32), (m, 32), (m, 16)))
    tensors = [t.mul_(0.5).requires_grad_() for t in (x, y, values)]
    kernel = ops.laplacian_kernel(*tensors[:2], 4.0, backend="cpu")
    product = ops.laplacian_matmul(*tensors, 4.0, backend="cpu")
    results = [kernel, product, *torch.autograd.grad(kernel.square().sum(), tensors[:2])]
    return [*results, *torch.autograd.grad(product.square().sum(), tensors)]


def assert_same_bits(results: list[Tensor], expected: list[Tensor]) -> None:
    for result, wanted in zip(results, expected, strict=True):
        assert torch.equal(result, wanted)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_same_bits_for_every_number_of_threads(shape: tuple[int, int, int]) -> None:
    threads = torch.get_num_threads()
    expected = everything(*shape)
    try:
        for count in (1, 2, 3, 5, 2):
            torch.set_num_threads(count)
            assert_same_bits(everything(*shape), expected)
    finally:
        torch.set_num_threads(threads)


# (N, M) of which either is the longer one, most of them large enough for many ranges of rows.
LENGTHS = [
    (49, 3136),
    (49, 784),
    (7, 129),
    (64, 5000),
    (1, 1000),
    (300, 2000),
    (3136, 49),
    (130, 130),
    (49, 49),
    (1, 1),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_a_product_has_the_same_bits_whatever_else_is_in_the_batch(lengths: tuple[int, int], threads: int) -> None:
    generator, before = torch.Generator().manual_seed(0), torch.get_num_threads()
    n, m = lengths
    x, y, values = (torch.randn(64, 2, rows, 24, generator=generator) for rows in (n, m, m))
    torch.set_num_threads(threads)
    try:
        alone = [ops.laplacian_matmul(*(t[i] for t in (x, y, values)), 4.0, backend="cpu") for i in range(7)]
        for batch in (1, 2, 3, 7, 64):
            together = ops.laplacian_matmul(*(t[:batch] for t in (x, y, values)), 4.0, backend="cpu")
            assert all(torch.equal(one, other) for one, other in zip(together, alone, strict=False))
    finally:
        torch.set_num_threads(before)


def test_the_attention_in_evaluation_has_the_same_bits_whatever_else_is_in_the_batch() -> None:
    q, k, v = (torch.randn(7, 2, 56 * 56, 32) for _ in range(3))
    variance = torch.rand(2, 49)

    def attention(images: slice) -> Tensor:
        tokens = (tensor[images] for tensor in (q, k, v))
        return ops.laplacian_attention(*tokens, (56, 56), (7, 7), 4.0, variance=variance, backend="cpu")[0]

    together = attention(slice(None))
    for image in (0, 3, 6):
        assert torch.equal(attention(slice(image, image + 1))[0], together[image])


def test_products_of_batches_beyond_the_memory_of_partial_sums_are_right() -> None:
    """Matrices are then computed some at a time: 64 ranges of 2048 short rows and 64 numbers are 32 MB for each."""
    x, y, values = (torch.randn(3, rows, 32) for rows in (2048, 8192, 8192))
    out = ops.laplacian_matmul(x, y, values, 4.0, backend="cpu")
    alone = torch.stack([ops.laplacian_matmul(*(t[i] for t in (x, y, values)), 4.0, backend="cpu") for i in range(3)])
    assert torch.equal(out, alone)
    assert not torch.equal(out[0], out[1])


def test_calls_from_several_threads_do_not_interfere() -> None:
    shapes = SHAPES * 3
    expected = {shape: everything(*shape) for shape in SHAPES}
    with ThreadPoolExecutor(4) as pool:
        for shape, results in zip(shapes, pool.map(lambda shape: everything(*shape), shapes), strict=True):
            assert_same_bits(results, expected[shape])


class _Kernels(Dataset[Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        x = torch.linspace(-1, 1, 3200).reshape(100, 32) * (index + 1)
        return ops.laplacian_kernel(x, x[:49], 4.0, backend="cpu")


def test_runs_in_forked_data_loader_workers() -> None:
    dataset = _Kernels()
    expected = torch.stack([dataset[i] for i in range(4)])
    loader = DataLoader(dataset, batch_size=2, num_workers=2, multiprocessing_context="fork")
    assert torch.equal(torch.cat(list(loader)), expected)
