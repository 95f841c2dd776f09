"""What learns: a model on its devices, with its optimiser, its schedule and the average of its weights."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

from lightning.fabric import Fabric
from timm.utils import ModelEmaV3, distribute_bn
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from laplacianformer._util.errors import InputError
from laplacianformer._util.tensor_files import check_tensors
from laplacianformer.training import _finite as finite
from laplacianformer.training import _sharding as sharding
from laplacianformer.training._checkpoint import fitting
from laplacianformer.training._optimiser import create_optimiser, create_schedule
from laplacianformer.training._task import Task


class Learner:
    """The model of a task, and everything that a step changes in it."""

    def __init__(self, task: Task, fabric: Fabric) -> None:
        optimise = task.recipe.optimise
        self.fabric, self.clip_norm = fabric, optimise.clip_norm
        self.sharded = task.recipe.run.strategy == "fsdp"
        self.restored: Path | None = None  # the folder of a checkpoint, until the step after it has shown that it fits
        self.bare, decay = task.model, optimise.ema_decay
        self.average = ModelEmaV3(self.bare, decay, use_warmup=True, foreach=not self.sharded) if decay else None
        self.model = fabric.setup_module(self.bare)
        if self.average is not None:
            self.average.to(fabric.device)
            if self.sharded:
                fabric.setup_module(self.average.module)
        self._bare_optimiser = create_optimiser(task.parameters(), optimise)
        self.schedule = create_schedule(self._bare_optimiser, optimise, len(task.batches), task.lr_steps)
        self.optimiser: Any = fabric.setup_optimizers(self._bare_optimiser)

    @property
    def evaluated(self) -> nn.Module:
        """The weights that count: the average where there is one."""
        return self.average.module if self.average is not None else self.bare

    @property
    def lr(self) -> float:
        """The learning rate of the recipe at this step: without the factors of layers and of single groups."""
        scales = [group.get("lr_scale", 1.0) for group in self.optimiser.param_groups]
        index = min(range(len(scales)), key=lambda number: abs(scales[number] - 1.0))
        return float(self.optimiser.param_groups[index]["lr"] / scales[index])

    def ema_decay(self, steps: int) -> float | None:
        """The decay that the average has reached after `steps` steps."""
        return self.average.get_decay(steps) if self.average is not None else None

    def update(self, loss: Tensor, step: int) -> Tensor:
        """Step number `step`, counted from 0, of the optimiser. Returns the norm of the gradient before clipping."""
        self.fabric.backward(loss)
        parameters = [parameter for parameter in self.bare.parameters() if parameter.grad is not None]
        total = get_total_norm([cast(Tensor, parameter.grad) for parameter in parameters])
        norm = sharding.whole(total)
        if not norm.isfinite():  # checked before clipping, which would spread it to every gradient
            raise finite.error("gradient", step, finite.gradients_not_finite(self.bare))
        if self.clip_norm:
            clip_grads_with_norm_(parameters, self.clip_norm, total)
        with fitting(self.restored, "state of the optimiser") if self.restored is not None else nullcontext():
            self.optimiser.step()
        self.restored = None
        self.optimiser.zero_grad()
        if self.average is not None:
            self.average.update(self.bare, step + 1)
        return norm

    def evaluation_model(self) -> nn.Module:
        """The weights that count, in evaluation mode; every process has to call this."""
        model = self.evaluated.eval()
        if self.fabric.world_size > 1:  # running statistics of the first process, as they are in its checkpoint
            distribute_bn(model, self.fabric.world_size, reduce=False)
        return model

    def weights(self) -> dict[str, Any]:
        """The weights that count, whole, for the first process; every process has to call this."""
        return sharding.model_state(self.evaluated, sharded=self.sharded)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, for the first process; every process has to call this."""
        average = self.average.module if self.average is not None else None
        return {
            "model": sharding.model_state(self.bare, sharded=self.sharded),
            "average": sharding.model_state(average, sharded=self.sharded) if average is not None else None,
            "optimiser": sharding.optimiser_state(self.bare, self._bare_optimiser, sharded=self.sharded),
        }

    def restore(self, state: Mapping[str, Any], folder: Path) -> None:
        """Take over what the checkpoint of a folder kept, if it fits."""
        if (state["average"] is None) != (self.average is None):
            raise InputError(
                f"the checkpoint of {folder} and its recipe disagree on whether there is an average of the weights"
            )
        for key in ("model", "average") if self.average is not None else ("model",):
            check_tensors(folder / f"checkpoint ({key})", type(self.bare).__name__, self.bare.state_dict(), state[key])
        self.restored = folder
        with fitting(folder, "state of the optimiser"):
            sharding.load_optimiser_state(self.bare, self._bare_optimiser, state["optimiser"], sharded=self.sharded)
        sharding.load_model_state(self.bare, state["model"], sharded=self.sharded)
        if self.average is not None:
            sharding.load_model_state(self.average.module, state["average"], sharded=self.sharded)
