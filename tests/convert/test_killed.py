"""A conversion that is killed in a phase, and between the phases, ends like one that was not."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from laplacianformer.convert import convert
from laplacianformer.training import _checkpoint as checkpoint
from tests.convert.helpers import QUICK, arguments, images, teacher
from tests.training import helpers

ROOT = Path(__file__).parents[2]
OVERRIDES = [*QUICK, "match.epochs=2", "distil.epochs=1", "run.checkpoint_steps=2"]

# Kills itself, as the machine would, in the n-th call of a method of the loop: a step, or a phase.
KILL = """
import os, signal
from pathlib import Path
from laplacianformer.training._loop import Loop
from tests.convert.test_killed import converted

def run(output, name, calls):
    left, original = [int(calls)], getattr(Loop, name)

    def counted(*arguments):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)

    setattr(Loop, name, counted)
    converted(Path(output))
"""


def converted(output: Path) -> Any:
    return convert(teacher(), images(20), output, model_args=arguments(), overrides=OVERRIDES, resume=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_in_a_phase_and_between_the_phases_gives_the_same_bits(tmp_path: Path) -> None:
    whole, output = converted(tmp_path / "whole"), tmp_path / "killed"
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with helpers.forking(KILL, PYTHONPATH=path) as killed:
        assert killed(output, "advance", 4) == -signal.SIGKILL
        assert checkpoint.load(output / "match")["step"] == 3
        # Of the loop: after `match`, before `distil`.
        assert killed(output, "run", 2) == -signal.SIGKILL
    assert (output / "match" / "model.safetensors").exists()
    assert not (output / "distil").exists()
    again = converted(output)
    expected, found = load_file(whole.weights), load_file(again.weights)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert (again.agreement, again.steps) == (whole.agreement, whole.steps)
    for phase in ("match", "distil"):
        assert helpers.rows(output / phase) == helpers.rows(tmp_path / "whole" / phase)
