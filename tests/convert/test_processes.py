"""A conversion in two processes: the same global batch gives the same layers and the same curves."""

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from laplacianformer.cli import main
from tests.convert.helpers import QUICK, SIDE, save_teacher, teacher
from tests.training import helpers

# A command in two processes, with the variables that torchrun sets: its own start, and importing twice, take longer.
# One that fails ends the other.
TWO = """
import os, signal
import laplacianformer.convert, laplacianformer.training._loop, lightning.fabric
from laplacianformer.cli import main

def started(rank):
    child = os.fork()
    if child == 0:
        os.environ.update(RANK=rank, LOCAL_RANK=rank)
        main(COMMAND)
        os._exit(0)
    return child

running = {started("0"), started("1")}
while running:
    ended, status = os.wait()
    running.remove(ended)
    if status:
        for other in running:
            os.kill(other, signal.SIGKILL)
        raise SystemExit(status)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_give_the_curves_of_one(run_fresh: Callable[..., str], tmp_path: Path) -> None:
    save_teacher(tmp_path / "teacher.safetensors", teacher())
    helpers.image_folder(tmp_path / "data", size=SIDE)
    attention = {"grid": 2, "gain": "learned", "whitening": "synced"}
    quick = (
        *(*QUICK, f"convert.attention_args={json.dumps(attention)}", "convert.calibration_images=12"),
        *("match.epochs=2", "distil.ema_decay=0.5", "run.log_steps=1", "augment.flip=0", "augment.scale=null"),
    )
    given = ["convert", str(tmp_path / "teacher.safetensors"), "--data", str(tmp_path / "data"), "--output"]
    command = [*given, str(tmp_path / "two.safetensors"), *quick, "run.devices=auto"]
    variables = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "two"}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    run_fresh(f"COMMAND = {command!r}{TWO}", **variables)
    main([*given, str(tmp_path / "one.safetensors"), *quick])
    for phase in ("match", "distil"):
        expected, found = helpers.rows(tmp_path / "one" / phase), helpers.rows(tmp_path / "two" / phase)
        assert len(found) == len(expected) == 8
        for row, other in zip(found, expected, strict=True):
            assert float(row["loss"]) == pytest.approx(float(other["loss"]), rel=1e-4)
            assert row["agreement"] == other["agreement"]
    wanted, weights = (load_file(tmp_path / f"{name}.safetensors") for name in ("one", "two"))
    for name in wanted:
        torch.testing.assert_close(weights[name], wanted[name], rtol=1e-2, atol=1e-3)
