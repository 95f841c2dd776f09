"""Parts of a model that don't train: no gradients, no statistics, no dropout."""

from collections.abc import Iterable, Sequence
from functools import partial

from torch import nn

from laplacianformer.attention._whitening import Whitening

# Layers with running statistics.
_STATISTICS = (Whitening, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def freeze_stages(model: nn.Module, names: Sequence[str], count: int, what: str) -> None:
    """Freeze the first `count` parts of a model with these names, and everything before their ends.

    names: of modules, in the order of the forward pass, as timm's feature_info has them; `what` is the model's.
    """
    if count > len(names):
        raise ValueError(f"frozen_stages={count}: {what} has {len(names)} stages")
    if count:
        frozen = _until(model, flat(names[count - 1]))
        for module in frozen:
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad_(False)
        _keep_in_evaluation(frozen)


def freeze_statistics(model: nn.Module) -> None:
    """Whitening and batch norm use their running statistics in training, too, and don't update them."""
    _keep_in_evaluation(module for module in model.modules() if isinstance(module, _STATISTICS))


def flat(name: str) -> str:
    """The name as some wrappers of timm have it: stages_0 for stages.0."""
    return name.replace(".", "_")


def _until(model: nn.Module, last: str) -> list[nn.Module]:
    """The modules up to the end of the one named `last`: they are registered in the order of the forward pass."""
    named = list(model.named_modules())
    inside = [index for index, (name, _) in enumerate(named) if f"{flat(name)}_".startswith(f"{last}_")]
    return [module for _, module in named[: inside[-1] + 1]]


def _keep_in_evaluation(modules: Iterable[nn.Module]) -> None:
    for module in modules:
        module.train = partial(_train, module)  # type: ignore[method-assign]
        module.training = False


def _train(module: nn.Module, mode: bool = True) -> nn.Module:
    """`module.train(mode)` for what is inside it, some of which may train; the module itself stays in evaluation."""
    type(module).train(module, mode)
    module.training = False
    return module
