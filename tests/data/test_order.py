"""The order of samples: a pure function of seed and epoch, the same global batches for any number of processes."""

import pytest
import torch

from laplacianformer._util.errors import InputError
from laplacianformer.data._order import Order, mix


def test_processes_share_the_batches_of_one() -> None:
    whole = Order(50, 12, seed=3).keys(7)
    parts = torch.stack([Order(50, 12, seed=3, rank=rank, world=4).keys(7) for rank in range(4)], 2)
    assert torch.equal(parts.flatten(1), whole)
    assert whole.shape == (4, 12)


def test_an_epoch_has_no_sample_twice_and_epochs_differ() -> None:
    order = Order(50, 12, seed=3)
    first, second = order.keys(0).flatten(), order.keys(1).flatten()
    assert len(first.unique()) == 48
    assert not torch.equal(first, second)
    assert not torch.equal(first, Order(50, 12, seed=4).keys(0).flatten())
    assert torch.equal(first, order.keys(0).flatten())


def test_repeats_are_copies_in_one_batch_with_keys_of_their_own() -> None:
    keys = Order(60, 12, seed=0, repeats=3).keys(0)
    samples = keys % 60
    assert keys.shape == (5, 12), "an epoch is as long as without"
    assert len(keys.unique()) == 60
    assert all(len(batch.unique()) == 4 for batch in samples)
    ranks = [Order(60, 12, seed=0, repeats=3, rank=rank, world=3).keys(0) % 60 for rank in range(3)]
    assert torch.equal(ranks[0], ranks[1]), "each process has another copy"


def test_impossible_batch_sizes_are_refused() -> None:
    with pytest.raises(InputError, match=r"batch_size=10 can't be split over 4 processes"):
        Order(50, 10, seed=0, world=4)
    with pytest.raises(InputError, match=r"batch_size=64 is more than the 50 training samples"):
        Order(50, 64, seed=0)


def test_mixed_seeds_differ_if_any_number_does() -> None:
    seeds = {mix(a, b, c) for a in range(8) for b in range(8) for c in range(8)}
    assert len(seeds) == 512
    assert all(0 <= seed < 2**63 for seed in seeds)
