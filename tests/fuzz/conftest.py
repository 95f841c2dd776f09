"""How many cases are generated, and from which seed."""

import datetime
import os

import pytest

from tests.fuzz.cases import KINDS

FEW, MANY = 400, 5000
BLOCK = 25  # cases per test


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "numbers" not in metafunc.fixturenames:
        return
    long = "fuzz" in metafunc.config.option.markexpr.split()
    count = int(os.environ.get("LAPLACIANFORMER_FUZZ", MANY if long else FEW))
    # The same in all processes of a run.
    seed = int(os.environ.get("LAPLACIANFORMER_FUZZ_SEED", datetime.date.today().toordinal() if long else 0))
    blocks = [
        pytest.param(kind, seed, range(start, min(start + BLOCK, total)), id=f"{kind}-seed{seed}-{start}")
        for kind, (_, part) in KINDS.items()
        for total in [max(1, round(part * count))]
        for start in range(0, total, BLOCK)
    ]
    metafunc.parametrize(("kind", "seed", "numbers"), blocks)
