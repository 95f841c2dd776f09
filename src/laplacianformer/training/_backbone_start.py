"""Models on a backbone: how they are built, and the weights that they start from, which are those of a classifier for
the backbone, or of their own kind for all.

Such a model has `arguments`, those of its builder: the name of the backbone, the number of classes, and others.
"""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from torch import Tensor, nn

from laplacianformer._util import limits
from laplacianformer._util.errors import InputError
from laplacianformer._util.tensor_files import json_entry, load_tensors, read_header
from laplacianformer.training._feature_maps import CONVERTED, FeatureMaps, parameter_groups
from laplacianformer.training._frozen import flat
from laplacianformer.weights._file import task_name
from laplacianformer.weights._start import start_file

if TYPE_CHECKING:  # pydantic is for training alone
    from laplacianformer.training._recipe import OnBackbone, Optimise

Arguments = ParamSpec("Arguments")


def create_on_backbone(
    what: str, section: "OnBackbone", build: Callable[..., Any], num_classes: int, **arguments: Any
) -> Any:
    """The model that a section of a recipe asks for, with the weights that training starts from.

    Args:
        what: the section, "detector" for example.
        arguments: of `build`, beside those in the section.
    """
    backbone, weights, backbone_args = _backbone_start(what, section)
    try:
        return build(
            backbone,
            num_classes,
            weights,
            backbone_args=backbone_args,
            frozen_stages=section.frozen_stages,
            frozen_statistics=section.frozen_statistics,
            **arguments,
            **section.args,
        )
    except InputError:
        raise
    except Exception as error:  # whatever arguments that nobody expected make the parts of a model raise
        on = f"{section.name} on {limits.one_line(section.backbone)}"
        raise InputError(f"can't create the {what} {on}: {limits.reason(error)}") from None


def create_parameter_groups(model: nn.Module, maps: FeatureMaps, optimise: "Optimise") -> list[dict[str, Any]]:
    """The parameters for the optimiser, with the weight decay and layer decay of the recipe."""
    try:
        return parameter_groups(model, maps, optimise.weight_decay, optimise.layer_decay)
    except ValueError as error:
        raise InputError(f"optimise.{error}") from None


def given_arguments(
    build: Callable[Arguments, Any], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> dict[str, Any]:
    """What a builder is called with, defaults included and `**options` among the others, for weights files."""
    signature = inspect.signature(build)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments |= arguments.pop(name)
    return arguments


def with_conversion(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a builder, with the attention that the backbone of the weights file has, if it was converted."""
    if given["weights"] is None:
        return given
    path = Path(given["weights"])
    _, metadata = read_header(path)
    if metadata.get("task") == "classification":  # of another model than the backbone: refused where it is loaded
        converted = CONVERTED in metadata and metadata.get("architecture") == given["backbone"]
        said = json_entry(path, metadata, CONVERTED) if converted else None
    else:
        stated = json_entry(path, metadata, "model_args") if "model_args" in metadata else None
        of_backbone = stated.get("backbone_args") if isinstance(stated, dict) else None
        said = of_backbone.get(CONVERTED) if isinstance(of_backbone, dict) else None
    return given if said is None else {**given, "backbone_args": {**(given["backbone_args"] or {}), CONVERTED: said}}


def _backbone_start(what: str, section: "OnBackbone") -> tuple[str, Path | None, dict[str, Any]]:
    """Backbone, weights file and arguments of the backbone: timm loads weights that it downloads by itself."""
    name, weights, arguments = section.backbone, section.weights, section.backbone_args
    path = start_file(weights) if weights is not None else None
    if weights is None or path is not None:
        return name, path, arguments
    if weights.partition(".")[0] != name.partition(".")[0]:
        raise InputError(f"{what}.weights={weights} are those of another model than {what}.backbone={name}")
    return weights, None, {**arguments, "pretrained": True}


def load_start(model: Any, path: Path, task: str, maps: FeatureMaps, per_class: tuple[str, ...]) -> None:
    """Load the tensors of a weights file into a model: all of them, or those of its backbone.

    per_class: how the names of layers with one output per class begin. They keep their random weights if the file has
        other classes.
    """
    header, metadata = read_header(path)
    stated = metadata.get("task")
    if stated == "classification":
        _load_backbone(model, path, maps, header, metadata)
    elif stated == task:
        _load_all(model, path, per_class, metadata)
    else:
        said = limits.one_line(str(stated))
        raise InputError(
            f"{path} holds weights for {said}: expected a classifier or a {task_name(task)} of this package"
        )


def _load_backbone(
    model: Any, path: Path, maps: FeatureMaps, header: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    name = model.arguments["backbone"]
    if metadata.get("architecture") != name:
        said = limits.one_line(str(metadata.get("architecture")))
        raise InputError(f"{path} holds a {said}: expected {name}, the backbone")
    given = {flat(key): key for key in header}
    # Without the last norm and the head, which a model on feature maps does not have.
    names = {key: given[flat(key)] for key in maps.model.state_dict() if flat(key) in given}
    load_tensors(maps.model, path, name, names)


def _load_all(model: Any, path: Path, per_class: tuple[str, ...], metadata: Mapping[str, str]) -> None:
    stated = json_entry(path, metadata, "model_args") if "model_args" in metadata else None
    others = isinstance(stated, dict) and stated.get("num_classes") != model.arguments["num_classes"]
    kept = [key for key in model.state_dict() if others and key.startswith(per_class)]
    architecture = limits.one_line(str(metadata.get("architecture")))
    load_tensors(model, path, f"{architecture} on {model.arguments['backbone']}", kept=kept)
