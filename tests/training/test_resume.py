"""A run that is killed and resumed ends like one that was not: the same weights bit for bit, and the same rows."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from laplacianformer.classification import _task as classification
from laplacianformer.training import _checkpoint as checkpoint

from . import helpers

pytestmark = pytest.mark.timeout(600)  # starts processes, on whatever cores there are

# Kills itself, as the machine would, in the n-th call of a function: an optimiser step, or the flush of a checkpoint.
KILL = """
import os, signal
from pathlib import Path
from laplacianformer import classification
from laplacianformer.training import Loop

def run(recipe, output, owner, name, calls):
    target, left = {"os": os, "Loop": Loop}[owner], [int(calls)]
    original = getattr(target, name)

    def counted(*arguments):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)

    setattr(target, name, counted)
    classification.train(classification.load_recipe(recipe), Path(output), resume=True)
"""
Killed = Callable[..., None]


@pytest.fixture(scope="module")
def killed() -> Iterator[Killed]:
    with helpers.forking(KILL) as call:

        def run(folder: Path, output: Path, owner: str, name: str, calls: int) -> None:
            assert call(folder / "recipe.yaml", output, owner, name, calls) == -signal.SIGKILL

        yield run


def assert_same_run(whole: classification.Result, resumed: classification.Result) -> None:
    assert helpers.rows(resumed.folder) == helpers.rows(whole.folder)
    expected, found = helpers.weights(whole.folder), helpers.weights(resumed.folder)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert (resumed.accuracy, resumed.best_accuracy) == (whole.accuracy, whole.best_accuracy)
    assert not list(resumed.folder.glob(".*.partial"))


@pytest.mark.slow
def test_killed_in_a_step_and_again_in_a_checkpoint_gives_the_same_bits(killed: Killed, tmp_path: Path) -> None:
    recipe = helpers.tiny(tmp_path)
    whole = classification.train(recipe, tmp_path / "whole")

    # In step 8 of 16, in the middle of an epoch: the checkpoint is from step 6. Then in the flush of the checkpoint of
    # step 8, after those of the lock, the rewritten rows and the row of step 8: so that of step 6 is
    # left.
    killed(tmp_path, tmp_path / "killed", "Loop", "advance", 8)
    assert checkpoint.load(tmp_path / "killed")["step"] == 6
    killed(tmp_path, tmp_path / "killed", "os", "fsync", 4)
    assert list((tmp_path / "killed").glob(".checkpoint.pt.*.partial"))
    assert checkpoint.load(tmp_path / "killed")["step"] == 6
    assert_same_run(whole, classification.train(recipe, tmp_path / "killed", resume=True))


@pytest.mark.slow
def test_killed_with_worker_processes_that_augment_gives_the_same_bits(killed: Killed, tmp_path: Path) -> None:
    augment = {"crop_padding": 0, "rand_augment": "rand-m9-mstd0.5-inc1", "erase": 0.5, "color_jitter": 0.3}
    recipe = helpers.tiny(tmp_path, data={"cache": False, "workers": 1, "repeats": 2}, augment=augment)
    whole = classification.train(recipe, tmp_path / "whole")
    killed(tmp_path, tmp_path / "killed", "Loop", "advance", 8)
    assert_same_run(whole, classification.train(recipe, tmp_path / "killed", resume=True))


@pytest.mark.slow
def test_killed_in_bfloat16_gives_the_same_bits(killed: Killed, tmp_path: Path) -> None:
    recipe = helpers.tiny(tmp_path, run={"precision": "bfloat16"})
    whole = classification.train(recipe, tmp_path / "whole")
    killed(tmp_path, tmp_path / "killed", "Loop", "advance", 8)
    assert checkpoint.load(tmp_path / "killed")["step"] == 6
    assert_same_run(whole, classification.train(recipe, tmp_path / "killed", resume=True))


@pytest.mark.slow
def test_bfloat16_learns_what_float32_learns(tmp_path: Path) -> None:
    """Of 96 held-out images at most 4 are told apart less, and the loss is level with that of float32 to 5 %."""
    helpers.image_folder(tmp_path / "data", train=16, val=32)
    results, losses = {}, {}
    for precision in ("float32", "bfloat16"):
        augment = {"flip": 0.0, "crop_padding": 0, "mixup": 0.0}
        recipe = helpers.tiny(tmp_path, optimise={"epochs": 10}, augment=augment, run={"precision": precision})
        results[precision] = classification.train(recipe, tmp_path / precision).accuracy
        losses[precision] = float(helpers.rows(tmp_path / precision)[-1]["loss"])
    assert results["float32"] > 0.8  # there is something to learn, and to lose
    assert results["bfloat16"] >= results["float32"] - 4 / 96
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.05)
    assert losses["bfloat16"] != losses["float32"]
