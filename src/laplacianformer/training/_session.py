"""The start of a run: its processes, its folder, and what can be refused before any data is read."""

import atexit
import os
import warnings
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lightning.fabric import Fabric
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from torch import distributed

from laplacianformer._util.errors import InputError
from laplacianformer._util.files import check_folder
from laplacianformer._util.locks import FolderLock
from laplacianformer._util.precision import try_bfloat16_on_cpu
from laplacianformer.training import _checkpoint as checkpoint
from laplacianformer.training._processes import in_each, in_first
from laplacianformer.training._recipe import Run
from laplacianformer.training._report import Report, Silent
from laplacianformer.training._sharding import shard

_PRECISIONS: dict[str, Any] = {"float32": "32-true", "bfloat16": "bf16-mixed"}


@dataclass(frozen=True)
class Session:
    """A run as one start of it sees it; a run that was interrupted continues in another session."""

    fabric: Fabric
    output: Path
    resume: bool = False  # continue from the checkpoint in `output`, if there is one
    report: Report = field(default_factory=Silent)
    lock: FolderLock | None = None  # on `output`, in the first process

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        """Let other runs have the folder."""
        if self.lock is not None:
            self.lock.release()

    @property
    def weights(self) -> Path:
        """The file that the trained weights go to."""
        return self.output / "model.safetensors"


def start(run: Run, output: Path, *, resume: bool = False, report: Report | None = None) -> Session:
    """Launch the processes of a run that writes to the folder `output`, alone until the end of a `with` block."""
    fabric = create_engine(run)
    fabric.launch()
    atexit.unregister(_leave_the_others)
    atexit.register(_leave_the_others)
    locks: list[FolderLock] = []
    in_first(fabric, lambda: _reserve(output, locks))
    if report is None or not fabric.is_global_zero:
        report = Silent()
    session = Session(fabric, output, resume, report, locks[0] if locks else None)
    try:
        in_first(fabric, lambda: _check_new(output, resume=resume))
        if run.precision == "bfloat16" and fabric.device.type == "cpu":
            in_each(fabric, partial(try_bfloat16_on_cpu, "run.precision=float32"))
    except BaseException:
        session.__exit__()
        raise
    return session


def create_engine(run: Run) -> Fabric:
    """Lightning Fabric: the device, the processes and how they communicate, as torchrun, SLURM or the recipe say."""
    devices, nodes = run.devices, run.num_nodes
    if TorchElasticEnvironment.detect():  # Lightning wants the numbers of torchrun and SLURM once more
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    elif SLURMEnvironment.detect():
        nodes = int(os.environ.get("SLURM_NNODES", "1"))
        devices = int(os.environ["SLURM_NTASKS"]) // nodes
    warnings.filterwarnings("ignore", "Grad strides do not match")  # of dimensions of size 1, where they mean nothing
    strategy: Any = run.strategy
    if strategy == "fsdp":
        if devices == "auto":
            raise InputError("run.strategy=fsdp: give run.devices=N, or start with torchrun or SLURM")
        strategy = ModelParallelStrategy(shard, data_parallel_size=devices * nodes, tensor_parallel_size=1)
    try:
        return Fabric(
            accelerator=run.accelerator,
            devices=devices,
            num_nodes=nodes,
            strategy=strategy,
            precision=_PRECISIONS[run.precision],
        )
    except (RuntimeError, ValueError) as error:  # no such device, or too few
        raise InputError(f"can't run on run.accelerator={run.accelerator}, run.devices={devices}: {error}") from None


def _leave_the_others() -> None:
    """End what connects this process to the others while there is an interpreter: gloo's threads may abort later."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def _reserve(output: Path, locks: list[FolderLock]) -> None:
    check_folder(output)
    locks.append(FolderLock(output))


def _check_new(output: Path, *, resume: bool) -> None:
    if checkpoint.exists(output) and not resume:
        raise InputError(f"{output} already holds a run: pass --resume to continue it, or another --output")
