"""Tables are made once, and never in a form that a later call can't use."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from laplacianformer import LaplacianAttention
from laplacianformer.ops import _tables as tables
from laplacianformer.ops._tables import cached_table, tables_made_once


def counting():
    calls = []

    @cached_table
    def table(n):
        calls.append(n)
        return torch.arange(n)

    return table, calls


def test_the_same_arguments_give_the_same_table():
    table, calls = counting()
    assert table(3) is table(3)
    assert table(4) is not table(3)
    assert calls == [3, 4]


def test_old_tables_are_forgotten(monkeypatch):
    monkeypatch.setattr(tables, "MOST_BYTES", 2 * 8)  # and the largest
    table, calls = counting()
    for n in (1, 2, 1, 3, 1, 2):  # 1 is used again before 3 needs room, so 2 is the oldest
        table(n)
    assert calls == [1, 2, 3, 2]


def test_threads_share_a_table_that_is_made_once(monkeypatch):
    monkeypatch.setattr(tables, "MOST_BYTES", 40 * 8)
    table, _ = counting()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: len(table(i % 13 + 1)), range(4000)))
    assert found == [i % 13 + 1 for i in range(4000)]


def test_the_largest_table_is_kept_beside_small_ones_until_there_is_a_larger_one(monkeypatch):
    monkeypatch.setattr(tables, "MOST_BYTES", 8)
    table, calls = counting()
    for n in (9, 1, 9, 1, 10, 1, 9):
        table(n)
    assert calls == [9, 1, 10, 9]


def test_tables_made_in_inference_mode_serve_training():
    layer, x = LaplacianAttention(32, 2).train(), torch.randn(1, 11 * 13, 32)
    with torch.inference_mode():
        layer(x, (11, 13))
    layer(x, (11, 13)).sum().backward()


def test_fake_tensors_are_neither_kept_nor_given_real_tables():
    layer = LaplacianAttention(32, 2).eval()
    x = torch.randn(1, 10 * 17, 32)
    expected = layer(x, (10, 17))
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        fake = LaplacianAttention(32, 2).eval()
        assert fake(mode.from_tensor(x), (10, 17)).shape == x.shape
        assert fake(torch.randn(1, 9 * 17, 32), (9, 17)).shape == (1, 9 * 17, 32)
    assert torch.equal(layer(x, (10, 17)), expected)
    assert layer(torch.randn(1, 9 * 17, 32), (9, 17)).isfinite().all()


def test_a_traced_graph_makes_each_table_once_and_leaves_it_to_no_other():
    table, calls = counting()
    with FakeTensorMode(), tables_made_once():
        assert table(3) is table(3)
        table(4)
    with FakeTensorMode():
        table(3)
    table(3)
    assert calls == [3, 4, 3, 3]
