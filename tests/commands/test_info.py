"""`laplacianformer info`: the cost of every size."""

import json

import pytest

from laplacianformer.cli import main
from laplacianformer.inspect import _cost as cost


@pytest.mark.slow
def test_json_states_the_cost_of_every_size(capsys, monkeypatch):
    assert cost.SIZES == ("nano", "tiny", "small", "medium", "large", "huge")
    monkeypatch.setattr(cost, "SIZES", ("nano", "tiny"))  # the others: model/test_sizes.py
    main(["info", "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == ["laplacianformer_nano", "laplacianformer_tiny"]
    assert rows["laplacianformer_tiny"]["parameters"] == pytest.approx(12.06e6, rel=1e-3)
    assert rows["laplacianformer_tiny"]["macs"] == pytest.approx(2.14e9, rel=3e-3)


@pytest.mark.slow
def test_the_table_shows_the_papers_numbers_only_where_they_apply(capsys, monkeypatch):
    monkeypatch.setattr(cost, "SIZES", ("nano", "huge"))
    main(["info"])
    at_224 = capsys.readouterr().out
    main(["info", "--size", "64"])
    at_64 = capsys.readouterr().out
    assert "15.5 " in at_224
    assert "15.5 " not in at_64
