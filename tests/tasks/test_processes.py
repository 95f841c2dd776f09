"""Many processes: the same global batch gives the same curve, and a lost worker costs a restart, not the run."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from laplacianformer.tasks import classification

from . import helpers

pytestmark = pytest.mark.timeout(600)  # starts up to four processes, on whatever cores there are
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
TRAIN = """
import sys
from pathlib import Path
from laplacianformer import recipes
from laplacianformer.tasks import classification

class Interrupted(Exception):
    pass

def interrupted(training, batch, advance=classification.Training.advance):
    if training.step == 9:
        raise Interrupted
    advance(training, batch)

folder = Path(sys.argv[1])
for kind in ("sync", "alone"):
    classification.train(recipes.load(str(folder / kind / "recipe.yaml")), folder / f"two-{kind}")
sharded = recipes.load(str(folder / "sync" / "recipe.yaml"), ["run.strategy=fsdp"])
advance, classification.Training.advance = classification.Training.advance, interrupted
try:
    classification.train(sharded, folder / "two-sharded")
except Interrupted:
    classification.Training.advance = advance
    classification.train(sharded, folder / "two-sharded", resume=True)
"""
# Nothing that is drawn by each process on its own: no Mixup and no stochastic depth.
STEADY = {"augment": {"mixup": 0.0}, "run": {"log_steps": 1, "devices": "auto"}}


def steady(folder: Path, *, sync: bool) -> Any:
    folder.mkdir(exist_ok=True)
    attention = {**helpers.ATTENTION, "sync": sync}
    return helpers.tiny(folder, model={"args": {**helpers.MODEL, "attention_args": attention}}, **STEADY)


def losses(folder: Path) -> torch.Tensor:
    return torch.tensor([float(row["loss"]) for row in helpers.rows(folder)])


def test_two_processes_give_the_curve_of_one(tmp_path: Path) -> None:
    """With synchronised whitening to rounding, 1e-4, also with split weights and an interruption (FSDP); without,
    each half batch is whitened by itself: 5 %."""
    one = classification.train(steady(tmp_path / "sync", sync=True), tmp_path / "one")
    steady(tmp_path / "alone", sync=False)
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    with helpers.python([*TORCHRUN, str(script), str(tmp_path)]) as process:
        text, _ = process.communicate()
    assert process.returncode == 0, text

    expected = losses(tmp_path / "one")
    assert len(expected) == one.steps == 16
    for kind in ("two-sync", "two-sharded"):
        torch.testing.assert_close(losses(tmp_path / kind), expected, rtol=1e-4, atol=0)
        for row, other in zip(helpers.rows(tmp_path / "one"), helpers.rows(tmp_path / kind), strict=True):
            assert row["validation_accuracy"] == other["validation_accuracy"]
        found, wanted = helpers.weights(tmp_path / kind), helpers.weights(tmp_path / "one")
        assert found.keys() == wanted.keys()
        for name in wanted:
            torch.testing.assert_close(found[name], wanted[name], rtol=1e-2, atol=1e-4)
    alone = losses(tmp_path / "two-alone")
    torch.testing.assert_close(alone, expected, rtol=5e-2, atol=0)
    assert (alone - expected).abs().max() > 1e-4, "half batches have statistics of their own"


def workers(parent: int) -> list[int]:
    """Processes started by `parent`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            if int(fields[1]) == parent and fields[0] != "Z":
                found.append(int(entry.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_run_that_loses_a_worker_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    recipe = steady(tmp_path / "sync", sync=True)
    classification.train(recipe, tmp_path / "one")
    command = ["-m", "laplacianformer", "train", "--recipe", str(tmp_path / "sync" / "recipe.yaml"), "--resume"]
    arguments = [*TORCHRUN, "--max-restarts=1", *command, "--output", str(tmp_path / "two")]
    # torchrun's own store keeps the addresses of the processes that died: docs/training.md.
    with helpers.python(arguments, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1") as process:
        while not (tmp_path / "two" / "checkpoint.pt").exists() and process.poll() is None:
            time.sleep(0.01)
        for worker in workers(process.pid)[-1:]:
            os.kill(worker, signal.SIGKILL)
        text, _ = process.communicate()
    assert process.returncode == 0, text
    assert "exitcode: -9" in text, "a worker was killed"
    torch.testing.assert_close(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=1e-4, atol=0)
