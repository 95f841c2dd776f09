"""A run that is killed and resumed ends as the run that was not: weights bit for bit, rows alike."""

import signal
from pathlib import Path

import pytest
import torch

from laplacianformer.tasks import classification

from . import helpers

# Kills itself, as the machine would, in the n-th call of a function: an optimiser step, or the flush of a checkpoint.
KILL = """
import os, signal, sys
from pathlib import Path
from laplacianformer import recipes
from laplacianformer.tasks import classification

recipe, output, owner, name, calls = sys.argv[1:]
target, left = {"os": os, "Training": classification.Training}[owner], [int(calls)]
original = getattr(target, name)

def counted(*arguments):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments)

setattr(target, name, counted)
classification.train(recipes.load(recipe), Path(output), resume=True)
"""


def killed(folder: Path, output: Path, owner: str, name: str, calls: int) -> None:
    process = helpers.python(["-c", KILL, str(folder / "recipe.yaml"), str(output), owner, name, str(calls)])
    text, _ = process.communicate(timeout=200)
    assert process.returncode == -signal.SIGKILL, text


@pytest.mark.parametrize("cache", [True, False], ids=["memory", "stream"])
def test_killed_in_a_step_and_in_a_checkpoint_and_resumed_gives_the_same_bits(tmp_path: Path, cache: bool) -> None:
    streamed = {"crop_padding": 0, "rand_augment": "rand-m9-mstd0.5-inc1", "erase": 0.5, "color_jitter": 0.3}
    changes = {} if cache else {"data": {"cache": False, "workers": 1}, "augment": streamed}
    recipe = helpers.tiny(tmp_path, **changes)
    whole = classification.train(recipe, tmp_path / "whole")

    # Step 9 of 16: the checkpoint is from step 8, the end of an epoch. Then the flush of the next checkpoint's file
    # (step 9), after those of the CSV and its row; what is found then is the checkpoint of step 8 again.
    killed(tmp_path, tmp_path / "killed", "Training", "advance", 8)
    assert len(helpers.rows(tmp_path / "killed")) == 3
    killed(tmp_path, tmp_path / "killed", "os", "fsync", 3)
    assert list((tmp_path / "killed").glob(".checkpoint.pt.*.partial"))
    resumed = classification.train(recipe, tmp_path / "killed", resume=True)

    assert helpers.rows(tmp_path / "killed") == helpers.rows(tmp_path / "whole")
    expected, found = helpers.weights(tmp_path / "whole"), helpers.weights(tmp_path / "killed")
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert (resumed.accuracy, resumed.best_accuracy) == (whole.accuracy, whole.best_accuracy)
    assert not list((tmp_path / "killed").glob(".*.partial"))
