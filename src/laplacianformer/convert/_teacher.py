"""The trained model with softmax attention: where it comes from, and what it tells while it runs."""

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import resolve_data_config
from torch import Tensor, nn

from laplacianformer._util import limits
from laplacianformer._util.errors import InputError
from laplacianformer._util.files import open_regular
from laplacianformer._util.tensor_files import check_tensors, load_tensors, read_header, read_metadata
from laplacianformer.convert._recipe import Teacher
from laplacianformer.inspect._finite import first_not_finite, is_finite
from laplacianformer.model import LaplacianFormer
from laplacianformer.model._image_size import fixed_size
from laplacianformer.weights import load_weights
from laplacianformer.weights._file import FORBIDDEN

_SAME = 2e-5  # difference of outputs, over the largest: rounding, and no other activation


@dataclass
class TeacherModel:
    """A model in evaluation mode, and what is known about it."""

    model: Any
    name: str  # for timm.create_model
    args: dict[str, Any]  # of timm.create_model, with num_classes
    classes: tuple[str, ...] | None = None  # names of the outputs, where they are known
    weights: str = ""  # where its weights come from, in words
    given: bool = False  # as a model: whether name and args describe it is for `check_rebuilt` to say

    @property
    def outputs(self) -> int:
        """The number of logits; 0 for a model without classes."""
        return int(self.model.num_classes)

    def origin(self) -> dict[str, Any]:
        """What a converted model was made from, for its weights file."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return {"architecture": self.name, "weights": self.weights, "sha256": digest.hexdigest()}


def load_teacher(teacher: Teacher) -> TeacherModel:
    """The model that a recipe names, or what is wrong with it."""
    if is_file(teacher.name):
        path = Path(teacher.name)
        if teacher.weights is not None or teacher.args:
            raise InputError(f"{path} says itself what it holds: leave teacher.weights and teacher.args out")
        loaded = load_weights(path)
        arguments = json.loads(loaded.metadata["model_args"])
        found = TeacherModel(loaded.model, loaded.metadata["architecture"], arguments, loaded.classes, path.name)
    elif teacher.weights is None:
        found = _of_hub(teacher)
    else:
        found = _of_file(teacher, Path(teacher.weights))
    if teacher.classes is not None:
        found.classes = read_classes(Path(teacher.classes), found.outputs)
    found.model.eval()
    return found


def is_file(name: str) -> bool:
    """Whether the name of a teacher is that of a weights file of this package, or else one of timm."""
    return Path(name).suffix == ".safetensors" or Path(name).is_file()


def wrap(model: nn.Module, arguments: Mapping[str, Any], classes: Sequence[str] | None = None) -> TeacherModel:
    """A copy, in float32, of a model from timm.create_model as a teacher, what it was built with, and the names of its
    outputs."""
    name = getattr(model, "pretrained_cfg", {}).get("architecture", "")
    if not name or not hasattr(model, "forward_intermediates"):
        raise InputError(f"expected a model from timm.create_model, got a {type(model).__name__}")
    given = {**(model.arguments if isinstance(model, LaplacianFormer) else {}), **arguments}
    given = {key: value for key, value in given.items() if key not in FORBIDDEN}
    twin: Any = copy.deepcopy(model).float().eval()
    teacher = TeacherModel(twin, name, {**given, "num_classes": twin.num_classes}, weights="given", given=True)
    if classes is not None:
        if not _are_names(list(classes), teacher.outputs):
            raise InputError(f"the model has {teacher.outputs} outputs: expected classes, that many different names")
        teacher.classes = tuple(classes)
    with torch.device("meta"):
        built = _rebuilt(teacher)
    shapes, expected = ({key: value.shape for key, value in each.state_dict().items()} for each in (twin, built))
    if shapes != expected:
        raise _other(teacher)
    return teacher


def _rebuilt(teacher: TeacherModel) -> Any:
    """The model that is built from what a weights file will say."""
    try:
        with torch.random.fork_rng(devices=[]):
            return timm.create_model(teacher.name, **teacher.args)
    except Exception as error:  # whatever arguments that nobody expected make the parts of a model raise
        given = limits.shown(teacher.args)
        raise InputError(f"{teacher.name} can't be built with model_args={given}: {limits.reason(error)}") from None


def _other(teacher: TeacherModel) -> InputError:
    return InputError(
        f"the model is not timm.create_model({teacher.name!r}) with model_args={limits.shown(teacher.args)}: give "
        "model_args, what it was built with beside num_classes"
    )


@torch.no_grad()
def check_rebuilt(teacher: TeacherModel, images: Tensor) -> None:
    """Refuse a model that is not what its name and arguments make of its tensors: its weights file would be read as
    another model."""
    built = _rebuilt(teacher).to(images.device).eval()
    built.load_state_dict(teacher.model.state_dict())
    for found, expected in zip(*(_seen(model, images) for model in (built, teacher.model)), strict=True):
        if (found - expected).abs().max() > _SAME * expected.abs().max():
            raise _other(teacher)


def _seen(model: Any, images: Tensor) -> tuple[Tensor, ...]:
    """What comes out before and after pooling, and of the head, which alone says nothing where it is zero."""
    final = model.forward_intermediates(images, intermediates_only=False)[0]
    return final, model.forward_head(final, pre_logits=True), model(images)


def stated_input(name: str) -> dict[str, Any]:
    """What a teacher expects its images to be: size, mean, std, interpolation, crop_pct."""
    if is_file(name):
        said = load_weights(Path(name)).input
        return {**said, "size": said["size"][-1]}
    if not timm.is_model(name):
        raise InputError(f"no model {limits.shown(name)}: expected a name of timm, or a weights file of this package")
    try:
        said = timm.models.get_pretrained_cfg(name).to_dict()
    except RuntimeError:
        model = name.partition(".")[0]
        known = ", ".join(timm.list_pretrained(f"{model}.*")) or "none"
        raise InputError(
            f"timm has no weights {limits.one_line(name)}: expected {model}, or one of {limits.one_line(known)}"
        ) from None
    config = resolve_data_config(pretrained_cfg=said)
    keys = ("mean", "std", "interpolation", "crop_pct")
    return {"size": config["input_size"][-1], **{key: config[key] for key in keys}}


def family_recipe(name: str) -> str:
    """The recipe for a teacher by its name, or by the model in its weights file."""
    path = Path(name)
    said = read_metadata(path).get("architecture", "") if path.suffix == ".safetensors" else name
    return "convert-pvt" if said.startswith(("pvt_v2", "laplacianformer")) else "convert-vit"


def _create(teacher: Teacher, **options: Any) -> nn.Module:
    try:
        model: nn.Module = timm.create_model(teacher.name, **{**teacher.args, **options})
    except Exception as error:  # whatever arguments that nobody expected make the parts of a model raise
        raise InputError(
            f"can't create the teacher {limits.one_line(teacher.name)}: {limits.reason(error)}; expected a name of "
            "timm and arguments that it takes, or a weights file of this package"
        ) from None
    return model


def _of_hub(teacher: Teacher) -> TeacherModel:
    model: Any = _create(teacher, pretrained=True)
    tag = model.pretrained_cfg.get("tag") or "untagged"
    arguments = {**teacher.args, "num_classes": model.num_classes}
    return TeacherModel(model, teacher.name.partition(".")[0], arguments, weights=f"timm, {tag}")


def _of_file(teacher: Teacher, path: Path) -> TeacherModel:
    described = path.suffix == ".safetensors"  # it has a header, which says what there is before it is read
    tensors = read_header(path)[0] if described else _state_dict(path)
    name = teacher.name.partition(".")[0]
    arguments = dict(teacher.args)
    if "num_classes" not in arguments and timm.is_model(name):
        heads = timm.models.get_pretrained_cfg(name).classifier  # two of a distilled DeiT, of as many classes
        last = tensors.get(f"{heads if isinstance(heads, str) else (heads or ('',))[0]}.weight")
        if last is not None and last.ndim:
            arguments["num_classes"] = len(last)
            limits.check_arguments(arguments, f"the model of {path}")
    model: Any = _create(teacher, **arguments)
    if described:
        load_tensors(model, path, name)
    else:
        check_tensors(path, name, model.state_dict(), tensors)
        model.load_state_dict(tensors)
    return TeacherModel(model, name, {**arguments, "num_classes": model.num_classes}, weights=path.name)


def _state_dict(path: Path) -> dict[str, Tensor]:
    """The tensors of a state dict that torch saved."""
    try:
        with open_regular(path) as file:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a file that is not one of its own
        raise InputError(f"can't read the weights {path}: {limits.reason(error)}") from None
    if isinstance(state, dict):
        state = next((state[key] for key in ("state_dict", "model") if isinstance(state.get(key), dict)), state)
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise InputError(f"{path} holds no state dict: expected tensors by name")
    if any(value.is_meta for value in state.values()):
        raise InputError(f"{path} holds tensors of the meta device, without numbers: save the model itself")
    return {str(name): tensor for name, tensor in state.items()}


def read_classes(path: Path, outputs: int) -> tuple[str, ...]:
    """The names of the outputs in order, from a JSON file with a list of them or with {name: output}."""
    try:
        with open_regular(path) as file:
            text = file.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"can't read the classes {path}: {limits.reason(error)}") from None
    found = limits.parse_json(text, str(path))
    names = found
    if isinstance(found, dict) and all(type(number) is int for number in found.values()):
        names = sorted(found, key=found.__getitem__)
        names = names if sorted(found.values()) == list(range(outputs)) else None
    if not _are_names(names, outputs):
        raise InputError(
            f"{path} does not name {outputs} outputs: expected a list of that many different names, or "
            f"{{name: output}} with the outputs 0 to {outputs - 1}"
        )
    return tuple(names)


def _are_names(names: Any, outputs: int) -> bool:
    texts = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return texts and len(names) == len(set(names)) == outputs


@torch.no_grad()
def check_images(teacher: TeacherModel, images: Tensor) -> None:
    """Refuse images that the teacher can't take, and a teacher whose outputs for them are not finite."""
    fixed, given = fixed_size(teacher.model), tuple(images.shape[-2:])
    if fixed is not None and fixed != given:
        wanted, found = (" x ".join(map(str, size)) for size in (fixed, given))
        raise InputError(
            f"the teacher {teacher.name} takes images of {wanted} pixels, and data.size gives {found}: give "
            "teacher.args={dynamic_img_size: true}, or in Python a model that was built for them"
        )
    try:
        outputs = teacher.model(images)
    except (AssertionError, RuntimeError, ValueError) as error:  # as layers refuse a shape
        shape = " x ".join(map(str, images.shape[1:]))
        raise InputError(
            f"the teacher {teacher.name} can't take images of {shape}: {limits.reason(error)}; give another data.size, "
            "in Python images of another shape"
        ) from None
    if not is_finite(outputs):
        where = first_not_finite(teacher.model, images)
        raise InputError(f"the teacher {teacher.name} ({teacher.weights}) gives outputs that are not finite: {where}")
