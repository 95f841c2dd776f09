"""Conversion in one call, of a model that is there."""

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from timm.data import resolve_model_data_config
from timm.models.pvt_v2 import PyramidVisionTransformerV2
from torch import Tensor, nn

from laplacianformer._util.errors import InputError
from laplacianformer.classification._batches import Loaders
from laplacianformer.classification._recipe import Augment
from laplacianformer.convert._recipe import ConvertRecipe, PhaseName, Teacher, changed, load_recipe
from laplacianformer.convert._run import Result, opened, run
from laplacianformer.convert._teacher import wrap
from laplacianformer.data import Batch
from laplacianformer.data._order import Order
from laplacianformer.data._sources import parse
from laplacianformer.model import LaplacianFormer
from laplacianformer.model._conversion import softmax_layers
from laplacianformer.training._report import Report
from laplacianformer.training._session import Session, start

PHASES: tuple[PhaseName, PhaseName] = ("match", "distil")
_HELD_OUT = 10  # every n-th image of a tensor
# What overrides can't say where images are a tensor, which is taken as it is.
_OF_FILES = ("augment.", "data.root=", "data.reader=", "data.train_split=", "data.val_split=", "data.size=")


def convert(
    model: nn.Module,
    images: Tensor | str | Path,
    output: Path | str | None = None,
    *,
    model_args: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    recipe: str | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    report: Report | None = None,
) -> Result:
    """A trained model with Laplacian attention in place of softmax attention. The model that is given stays as it
    is.

    Args:
        model: from timm.create_model, trained: a vision transformer, a PVT v2, or a model of this package with
            attention="softmax". What becomes of it is in float32.
        images: (N, 3, side, side), as the model expects them, of which every tenth is held out; they are not augmented.
            Or `[READER:]DIR`, as in training.
        output: folder of the run, with metrics, checkpoints and weights; none: a temporary one.
        model_args: what timm.create_model was given beside the name and num_classes, for the weights file.
        classes: names of the outputs in order, for labels and the weights file; none: the folders of the images in
            alphabetical order if there are as many, or else numbers.
        layers: attention layers to convert, from 0; none: all.
        recipe: its name or file; none: that of the family, convert-vit or convert-pvt.
        overrides: of the recipe, such as "distil.epochs=3"; not of its teacher, which is the model.
        resume: continue from the checkpoints in `output`, if there are any.
        report: is told how the run goes; without it nothing is printed.
    """
    softmax_layers(model)
    teacher = wrap(model, model_args or {}, classes)
    stated = [f"teacher.name={teacher.name}", *_input_overrides(model)]
    chosen = [*overrides, *([] if layers is None else [f"convert.layers={json.dumps([int(n) for n in layers])}"])]
    if isinstance(images, Tensor):
        chosen += [f"data.size={_side(images, overrides)}"]
    loaded = _adapted(load_recipe(recipe or recipe_for(model), [*stated, *chosen]), images)
    make: Any = Teacher  # of pydantic, which mypy does not see through
    if loaded.teacher != make(name=teacher.name):
        raise InputError(
            "the teacher is the model that is given: leave teacher.* out of the recipe and overrides, and name its "
            "outputs with classes=[...]"
        )
    with ExitStack() as stack:
        folder = Path(output) if output is not None else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        session = stack.enter_context(start(loaded.run, folder, resume=resume, report=report))
        match, distil = (_loaders(images, loaded, phase, session) for phase in PHASES)
        digest = _digest(images) if isinstance(images, Tensor) else ""
        return run(loaded, teacher, (match, distil), session, digest)


def recipe_for(model: nn.Module) -> str:
    """The recipe of a family of models: a pyramid, or tokens of one resolution."""
    return "convert-pvt" if isinstance(model, PyramidVisionTransformerV2 | LaplacianFormer) else "convert-vit"


def _input_overrides(model: Any) -> list[str]:
    """What the model says about its images, for the recipe."""
    config = resolve_model_data_config(model)
    side = getattr(getattr(model, "patch_embed", None), "img_size", None) or config["input_size"][1:]
    stated = {"size": side[-1], **{key: config[key] for key in ("mean", "std", "interpolation", "crop_pct")}}
    return [f"data.{key}={json.dumps(value)}" for key, value in stated.items()]


def _side(images: Tensor, overrides: Sequence[str]) -> int:
    """The side of the images, if a conversion can take them and no override asks for what a tensor can't have."""
    square = images.ndim == 4 and images.shape[1] == 3 and images.shape[2] == images.shape[3]
    if not square or not images.is_floating_point():
        raise InputError(
            f"expected floating-point images (N, 3, side, side), got {images.dtype}, {tuple(images.shape)}"
        )
    for override in overrides:
        if override.startswith(_OF_FILES):
            raise InputError(
                f"{override.partition('=')[0]} says nothing about images in a tensor, which are taken as they are: "
                "leave it out, or give a folder of images"
            )
    return images.shape[-1]


def _adapted(recipe: ConvertRecipe, images: Any) -> ConvertRecipe:
    """The recipe, with the source of the images and what is done to them."""
    if isinstance(images, Tensor):
        make: Any = Augment
        data = changed(recipe.data, reader="tensor", root=None)
        return changed(recipe, data=data, augment=make(flip=0.0))
    reader, root = parse(str(images))
    return changed(recipe, data=changed(recipe.data, reader=reader or recipe.data.reader, root=root))


def _digest(images: Tensor) -> str:
    found = hashlib.sha256()
    for image in images:
        found.update(image.float().cpu().contiguous().numpy())
    return found.hexdigest()


class _Tensors:
    """Training batches from a tensor, each image `order.repeats` times."""

    def __init__(self, images: Tensor, order: Order) -> None:
        self.images, self.order = images, order

    def __len__(self) -> int:
        return len(self.order)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from index `start` on."""
        for keys in self.order.keys(epoch)[start:]:
            yield Batch(self.images[keys % len(self.images)].float(), torch.zeros_like(keys))


def _loaders(images: Any, recipe: ConvertRecipe, phase: PhaseName, session: Session) -> Loaders:
    if not isinstance(images, Tensor):
        return opened(recipe, phase, session.fabric)
    rank, world = session.fabric.global_rank, session.fabric.world_size
    stated = recipe.phase(phase)
    data, size = stated.data, stated.optimise.batch_size
    held_out = _spread(images[::_HELD_OUT], data.val_samples)
    training = _spread(images[torch.arange(len(images)) % _HELD_OUT != 0], data.train_samples)
    if len(training) < size:
        raise InputError(
            f"{phase}.batch_size={size} is more than the {len(training)} training images: give more images"
        )
    order = Order(len(training), size, recipe.run.seed, data.repeats, rank, world)
    batches = [
        Batch(part.float(), torch.zeros(len(part), dtype=torch.long)) for part in held_out[rank::world].split(size)
    ]
    counts: dict[str, int | None] = {"training": len(training), "held-out": len(held_out)}
    return Loaders(_Tensors(training, order), batches, ("image",), counts)


def _spread(images: Tensor, most: int | None) -> Tensor:
    """At most that many of the images, evenly."""
    count = len(images) if most is None else min(most, len(images))
    return images[torch.arange(count) * len(images) // count] if count < len(images) else images
