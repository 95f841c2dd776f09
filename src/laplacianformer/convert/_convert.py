"""Conversion in one call, of a model that is there."""

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
from laplacianformer.convert._recipe import ConvertRecipe, PhaseName, changed, load_recipe
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


def convert(
    model: nn.Module,
    images: Tensor | str | Path,
    output: Path | str | None = None,
    *,
    model_args: Mapping[str, Any] | None = None,
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
            attention="softmax".
        images: (N, C, H, W), as the model expects them, of which every tenth is held out; or `[READER:]DIR`, as in
            training.
        output: folder of the run, with metrics, checkpoints and weights; none: a temporary one.
        model_args: what timm.create_model was given beside the name and num_classes, for the weights file.
        layers: attention layers to convert, from 0; none: all.
        recipe: its name or file; none: that of the family, convert-vit or convert-pvt.
        overrides: of the recipe, such as "distil.epochs=3".
        resume: continue from the checkpoints in `output`, if there are any.
        report: is told how the run goes; without it nothing is printed.
    """
    softmax_layers(model)
    teacher = wrap(model, model_args or {})
    name = recipe or recipe_for(model)
    stated = [f"teacher.name={teacher.name}", *_input_overrides(model)]
    loaded = _adapted(load_recipe(name, [*stated, *overrides]), images, layers)
    with ExitStack() as stack:
        folder = Path(output) if output is not None else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        session = stack.enter_context(start(loaded.run, folder, resume=resume, report=report))
        match, distil = (_loaders(images, loaded, phase, session) for phase in PHASES)
        return run(loaded, teacher, (match, distil), session)


def recipe_for(model: nn.Module) -> str:
    """The recipe of a family of models: a pyramid, or tokens of one resolution."""
    return "convert-pvt" if isinstance(model, PyramidVisionTransformerV2 | LaplacianFormer) else "convert-vit"


def _input_overrides(model: Any) -> list[str]:
    """What the model says about its images, for the recipe."""
    config = resolve_model_data_config(model)
    side = getattr(getattr(model, "patch_embed", None), "img_size", None) or config["input_size"][1:]
    stated = {"size": side[-1], **{key: config[key] for key in ("mean", "std", "interpolation", "crop_pct")}}
    return [f"data.{key}={json.dumps(value)}" for key, value in stated.items()]


def _adapted(recipe: ConvertRecipe, images: Any, layers: Sequence[int] | None) -> ConvertRecipe:
    data, convert = recipe.data, recipe.convert
    if isinstance(images, Tensor):
        if images.ndim != 4 or images.shape[2] != images.shape[3] or not images.is_floating_point():
            raise InputError(
                f"expected floating-point images (N, C, side, side), got {images.dtype}, {tuple(images.shape)}"
            )
        data = changed(data, root=None, size=images.shape[-1])
    else:
        reader, root = parse(str(images))
        data = changed(data, reader=reader or data.reader, root=root)
    if layers is not None:
        convert = changed(convert, layers=tuple(layers))
    return changed(recipe, data=data, convert=convert)


class _Tensors:
    """Training batches from a tensor."""

    def __init__(self, images: Tensor, order: Order) -> None:
        self.images, self.order = images, order

    def __len__(self) -> int:
        return len(self.order)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from index `start` on."""
        for keys in self.order.keys(epoch)[start:]:
            yield Batch(self.images[keys], torch.zeros_like(keys))


def _loaders(images: Any, recipe: ConvertRecipe, phase: PhaseName, session: Session) -> Loaders:
    if not isinstance(images, Tensor):
        return opened(recipe, phase, session.fabric)
    rank, world, size = session.fabric.global_rank, session.fabric.world_size, getattr(recipe, phase).batch_size
    held_out = images[::_HELD_OUT][rank::world]
    training = images[torch.arange(len(images)) % _HELD_OUT != 0]
    if len(training) < size:
        raise InputError(
            f"{phase}.batch_size={size} is more than the {len(training)} training images: give more images"
        )
    order = Order(len(training), size, recipe.run.seed, rank=rank, world=world)
    batches = [Batch(part, torch.zeros(len(part), dtype=torch.long)) for part in held_out.split(size)]
    counts: dict[str, int | None] = {"training": len(training), "held-out": len(images) - len(training)}
    return Loaders(_Tensors(training, order), batches, ("image",), counts)
