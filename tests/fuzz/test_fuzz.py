"""Generated inputs for every edge of the package: each is right, or ends with one clear line.

`make test` tries the same few hundred each time. `pytest -m fuzz` tries thousands, from a seed of the day; the
environment variables LAPLACIANFORMER_FUZZ (how many) and LAPLACIANFORMER_FUZZ_SEED choose others. A fault names its
kind, its seed and its number, with which `python -m tests.fuzz KIND SEED NUMBER` runs it alone.
"""

import ctypes
import hashlib
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.fuzz import cases, outcome, process
from tests.fuzz.cases import KINDS
from tests.fuzz.files import Samples
from tests.fuzz.outcome import ERROR, RIGHT
from tests.fuzz.process import CaseProcess

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(3600)]


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    folder = tmp_path_factory.mktemp("fuzz") / "own" / "cases"  # where ../.. holds no files of other tests
    folder.mkdir(parents=True)
    return Samples(folder)


@pytest.fixture(scope="session")
def apart(samples: Samples) -> Iterator[CaseProcess]:
    runner = CaseProcess(samples)
    yield runner
    runner.stop()


def test_generated_inputs(kind: str, seed: int, numbers: range, apart: CaseProcess, record_property) -> None:
    faults, classes = [], Counter()
    for number in numbers:
        found, said = apart.run(kind, seed, number)
        classes[found] += 1
        if found not in (RIGHT, ERROR):
            faults.append(f"{found}: python -m tests.fuzz {kind} {seed} {number}\n{said}")
    record_property("classes", dict(classes))
    if faults:
        pytest.fail("\n\n".join(faults), pytrace=False)


def raising(error: BaseException) -> Callable[[], None]:
    def case() -> None:
        raise error

    return case


def test_the_classes_tell_faults_apart() -> None:
    assert outcome.classify(lambda: None)[0] == outcome.RIGHT
    assert outcome.classify(raising(outcome.ClearError("op: x must be a tensor")))[0] == outcome.ERROR
    assert outcome.classify(raising(outcome.ClearError("two\nlines of text")))[0] == outcome.TRACEBACK
    assert outcome.classify(raising(outcome.ClearError("")))[0] == outcome.TRACEBACK
    assert outcome.classify(raising(KeyError("x")))[0] == outcome.TRACEBACK
    assert outcome.classify(raising(outcome.SilentlyWrong("x")))[0] == outcome.SILENT


def endless() -> None:
    while True:
        pass


def native() -> None:
    """Hours in native code, which no signal interrupts."""
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)


@pytest.mark.parametrize(
    ("case", "expected", "said"),
    [
        (lambda: None, RIGHT, ""),
        (lambda: os._exit(3), outcome.CRASH, "exit code 3"),
        (lambda: ctypes.string_at(0), outcome.CRASH, "SIGSEGV\nFatal Python error: Segmentation fault"),
        (endless, outcome.HANG, "Traceback"),
        (native, outcome.HANG, "in native code"),
    ],
    ids=["right", "exit", "crash", "endless", "native"],
)
def test_a_case_that_hangs_or_kills_its_process_is_told_apart(
    case: Callable[[], None], expected: str, said: str, samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the case after it runs."""
    monkeypatch.setattr(outcome, "SECONDS", 0.3)
    monkeypatch.setattr(process, "_GRACE", 0.7)
    monkeypatch.setitem(cases.KINDS, "bad", (lambda rng, samples: case, 0.0))
    monkeypatch.setitem(cases.KINDS, "good", (lambda rng, samples: lambda: None, 0.0))
    runner = CaseProcess(samples, fork=True)
    try:
        found = runner.run("bad", 0, 0)
        assert found[0] == expected
        assert found[1].startswith(said)
        assert runner.run("good", 0, 1) == (RIGHT, "")
    finally:
        runner.stop()


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"options"}))
def test_every_kind_makes_right_and_wrong_inputs(kind: str, apart: CaseProcess) -> None:
    """A generator whose inputs are all refused, or none, tests little. Command lines are meant to be wrong."""
    found = set[str]()
    for number in random.Random(0).sample(range(1000), 30):
        if not found >= {RIGHT, ERROR}:
            found.add(apart.run(kind, 1, number)[0])
    assert found == {RIGHT, ERROR}


def test_outputs_that_are_not_finite_and_pass_are_found(samples: Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laplacianformer.classification._inference.check_outputs", lambda *arguments: None)
    runner = CaseProcess(samples, fork=True)
    try:
        assert any(runner.run("weights", 2, number)[0] == outcome.SILENT for number in range(200))
    finally:
        runner.stop()
