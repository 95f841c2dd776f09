"""Generated inputs for every edge of the package: each is right, or ends with one clear line.

`make test` tries the same few hundred each time. `pytest -m fuzz` tries thousands, from a seed of the day; the
environment variables LAPLACIANFORMER_FUZZ (how many) and LAPLACIANFORMER_FUZZ_SEED choose others. A fault names its
kind, its seed and its number, with which `python -m tests.fuzz KIND SEED NUMBER` runs it alone.
"""

import logging
import random
import warnings
from collections import Counter

import pytest

from tests.fuzz.cases import KINDS, run_case
from tests.fuzz.files import Samples
from tests.fuzz.outcome import ERROR, RIGHT

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(3600)]


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return Samples(tmp_path_factory.mktemp("fuzz"))


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, samples: Samples) -> None:
    monkeypatch.chdir(samples.folder)  # relative paths of options
    caplog.set_level(logging.CRITICAL, logger="laplacianformer")  # until the end of the test


def test_generated_inputs(kind: str, seed: int, numbers: range, samples: Samples, record_property) -> None:
    faults, classes = [], Counter()
    for number in numbers:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome, said = run_case(kind, seed, number, samples)
        classes[outcome] += 1
        if outcome not in (RIGHT, ERROR):
            faults.append(f"{outcome}: python -m tests.fuzz {kind} {seed} {number}\n{said}")
    record_property("classes", dict(classes))
    if faults:
        pytest.fail("\n\n".join(faults), pytrace=False)


def test_the_classes_tell_faults_apart() -> None:
    from tests.fuzz import outcome

    def raising(error: BaseException):
        def case() -> None:
            raise error

        return case

    assert outcome.classify(lambda: None)[0] == outcome.RIGHT
    assert outcome.classify(raising(outcome.ClearError("op: x must be a tensor")))[0] == outcome.ERROR
    assert outcome.classify(raising(outcome.ClearError("two\nlines of text")))[0] == outcome.TRACEBACK
    assert outcome.classify(raising(outcome.ClearError("")))[0] == outcome.TRACEBACK
    assert outcome.classify(raising(KeyError("x")))[0] == outcome.TRACEBACK
    assert outcome.classify(raising(outcome.SilentlyWrong("x")))[0] == outcome.SILENT


def test_a_case_that_hangs_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fuzz import outcome

    def endless() -> None:
        while True:
            pass

    monkeypatch.setattr(outcome, "SECONDS", 0.1)
    assert outcome.classify(endless)[0] == outcome.HANG


def test_every_kind_makes_right_and_wrong_inputs(samples: Samples) -> None:
    """A generator whose inputs are all refused, or none, tests little. Command lines are meant to be wrong."""
    for kind in set(KINDS) - {"options"}:
        found = {run_case(kind, 1, number, samples)[0] for number in random.Random(0).sample(range(1000), 12)}
        assert found == {RIGHT, ERROR}, kind
