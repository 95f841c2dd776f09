"""Many processes: the same global batch gives the same curve, and a lost worker costs a restart, not the run."""

import os
import signal
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from laplacianformer.classification import _task as classification

from . import helpers

pytestmark = pytest.mark.timeout(600)  # starts up to four processes, on whatever cores there are
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
START = """
import os, sys
from pathlib import Path
from laplacianformer import classification
from laplacianformer.cli import main

folder = Path(sys.argv[1])
"""
TRAIN = """
from laplacianformer.training import Loop
from laplacianformer.training._metrics import Metrics

class Interrupted(Exception):
    pass

def interrupted(loop, batch, advance=Loop.advance):
    if loop.step == 9:
        raise Interrupted
    advance(loop, batch)

for kind in ("sync", "alone"):
    classification.train(classification.load_recipe(str(folder / kind / "recipe.yaml")), folder / f"two-{kind}")
sharded = classification.load_recipe(str(folder / "sync" / "recipe.yaml"), ["run.strategy=fsdp"])
advance, Loop.advance = Loop.advance, interrupted
try:
    classification.train(sharded, folder / "two-sharded")
except Interrupted:
    Loop.advance = advance
    classification.train(sharded, folder / "two-sharded", resume=True)
"""
# What goes wrong in one process only: reading its images, reading held-out images, the disk of the first.
STOP = """
from laplacianformer.data._folders import FolderImages
from laplacianformer._util.errors import InputError

rank = int(os.environ["RANK"])
overrides = ["data.cache=false", "augment.crop_padding=0"]
recipe = classification.load_recipe(str(folder / "alone" / "recipe.yaml"), overrides)
message = f"broken in process {rank}"

def unreadable(split):
    def read(images, index, read=FolderImages.read):
        if images.root.endswith(split):
            raise InputError(message)
        return read(images, index)
    return read

def full(metrics, row, layers):
    raise InputError(message)

def train_with(what, where, owner, name, replacement):
    original = getattr(owner, name)
    if rank == where:
        setattr(owner, name, replacement)
    try:
        classification.train(recipe, folder / f"stopped-{what}")
    except InputError as error:
        (folder / f"{what}-{rank}").write_text(str(error))
    setattr(owner, name, original)

train_with("images", 1, FolderImages, "read", unreadable("train"))
train_with("held-out", 1, FolderImages, "read", unreadable("val"))
train_with("disk", 0, Metrics, "add", full)
"""
# Until a worker is killed, and again after that.
COMMAND = """
main(["train", "--recipe", str(folder / "sync" / "recipe.yaml"), "--resume", "--output", str(folder / "two")])
"""
# Nothing that is drawn by each process on its own: no Mixup and no stochastic depth.
STEADY = {"augment": {"mixup": 0.0}, "run": {"log_steps": 1, "devices": "auto"}}


def steady(folder: Path, *, sync: bool) -> Any:
    folder.mkdir(exist_ok=True)
    attention = {**helpers.ATTENTION, "sync": sync}
    return helpers.tiny(folder, model={"args": {**helpers.MODEL, "attention_args": attention}}, **STEADY)


def losses(folder: Path) -> torch.Tensor:
    return torch.tensor([float(row["loss"]) for row in helpers.rows(folder)])


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


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that two processes do, in one start, as starting takes longer; and with what one does.

    Of the command's run, a worker is killed, where /proc has its number. `said` holds what all of them printed.
    """
    folder = tmp_path_factory.mktemp("trained")
    recipe = steady(folder / "sync", sync=True)
    steady(folder / "alone", sync=False)
    first = textwrap.indent(TRAIN + STOP, "    ")
    program = f"{START}if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n{first}{COMMAND}"
    (folder / "train.py").write_text(program)
    # torchrun's own store keeps the addresses of the processes that died: docs/training.md.
    arguments = [*TORCHRUN, "--max-restarts=1", str(folder / "train.py"), str(folder)]
    with helpers.python(arguments, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1") as process:
        while not (folder / "two" / "checkpoint.pt").exists() and process.poll() is None:
            time.sleep(0.01)
        for worker in workers(process.pid)[-1:] if sys.platform == "linux" else ():
            os.kill(worker, signal.SIGKILL)
        text, _ = process.communicate()
    assert process.returncode == 0, text
    (folder / "said").write_text(text)
    assert classification.train(recipe, folder / "one").steps == 16
    return folder


def assert_what_ended_one_ended_all_with_its_message(trained: Path) -> None:
    said = {path.name: path.read_text() for path in trained.iterdir() if path.is_file()}
    for what, rank in (("images", 1), ("held-out", 1), ("disk", 0)):
        assert said[f"{what}-0"] == said[f"{what}-1"]
        assert f"broken in process {rank}" in said[f"{what}-0"]
        assert not (trained / f"stopped-{what}" / "model.safetensors").exists()
    assert "of 12 samples (data.corrupt_limit) can't be read; the last: " in said["images-0"]
    assert "of 6 samples (data.corrupt_limit) can't be read; the last: " in said["held-out-0"]


@pytest.mark.slow
def test_processes_end_together(trained: Path) -> None:
    assert_what_ended_one_ended_all_with_its_message(trained)


@pytest.mark.slow
def test_two_processes_give_the_curve_of_one(trained: Path) -> None:
    """With synchronised whitening to rounding, 1e-4, also with sharded weights (FSDP) and an interruption; without,
    each half of the batch is whitened by itself: 5 %."""
    expected = losses(trained / "one")
    assert len(expected) == 16
    for kind in ("two-sync", "two-sharded"):
        torch.testing.assert_close(losses(trained / kind), expected, rtol=1e-4, atol=0)
        for row, other in zip(helpers.rows(trained / "one"), helpers.rows(trained / kind), strict=True):
            assert row["validation_accuracy"] == other["validation_accuracy"]
        found, wanted = helpers.weights(trained / kind), helpers.weights(trained / "one")
        assert found.keys() == wanted.keys()
        for name in wanted:
            torch.testing.assert_close(found[name], wanted[name], rtol=1e-2, atol=1e-4)
    alone = losses(trained / "two-alone")
    torch.testing.assert_close(alone, expected, rtol=5e-2, atol=0)
    assert (alone - expected).abs().max() > 1e-4, "half batches have statistics of their own"


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.slow
def test_a_run_that_loses_a_worker_continues_from_its_checkpoint(trained: Path) -> None:
    assert "exitcode: -9" in (trained / "said").read_text(), "a worker was killed"
    torch.testing.assert_close(losses(trained / "two"), losses(trained / "one"), rtol=1e-4, atol=0)
