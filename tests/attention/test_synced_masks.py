"""Whitening over the batches of two processes, of which one, both or none have padding: the numbers of one process."""

from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed
from torch.multiprocessing import get_context, start_processes
from torch.nn.parallel import DistributedDataParallel

from laplacianformer import LaplacianAttention

TOKENS, DIM = 40, 16
# The lengths of four sequences, two for each process. A process in which all are whole gives a mask or none.
CASES = {
    "both": (40, 25, 40, 10),
    "one, the other has a mask of all tokens": (40, 40, 40, 10),
    "one, the other has no mask": (40, 40, 40, 10),
    "one has few landmarks": (3, 3, 40, 20),
}


def layer() -> LaplacianAttention:
    torch.manual_seed(1)
    return LaplacianAttention(DIM, 2, axes=1, grid=8, whitening="synced", gain="learned")


def batch(case: str) -> tuple[Tensor, Tensor]:
    x = torch.randn(4, TOKENS, DIM, generator=torch.Generator().manual_seed(0))
    return x, torch.arange(TOKENS) < torch.tensor(CASES[case])[:, None]


def train(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    found = {}
    for case in CASES:
        x, mask = (part[2 * rank : 2 * rank + 2] for part in batch(case))
        attention = layer()
        masks = () if case.endswith("no mask") and mask.all() else (mask,)
        parallel = DistributedDataParallel(attention)
        out = parallel(x, (TOKENS,), *masks)
        out.square().sum().backward()
        found[case] = out.detach(), [parameter.grad.clone() for parameter in attention.parameters()]
    torch.save(found, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_with_padding_are_whitened_as_one(tmp_path: Path) -> None:
    get_context("forkserver").set_forkserver_preload(["laplacianformer"])  # imported once for both
    start_processes(train, (str(tmp_path),), nprocs=2, start_method="forkserver")
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for case in CASES:
        x, mask = batch(case)
        attention = layer()
        out = attention(x, (TOKENS,), mask)
        (out.square().sum() / 2).backward()  # gradients are averaged over the processes
        torch.testing.assert_close(torch.cat([of[case][0] for of in found]), out.detach(), rtol=1e-4, atol=1e-5)
        for of in found:
            for one, parameter in zip(of[case][1], attention.parameters(), strict=True):
                atol = 1e-4 * float(parameter.grad.abs().max())
                torch.testing.assert_close(one, parameter.grad, rtol=1e-3, atol=atol, msg=lambda m, case=case: case + m)
