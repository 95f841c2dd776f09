"""A conversion from the start to the weights file: take the weights over, match the layers, distil the model."""

import copy
import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from laplacianformer._util.errors import InputError
from laplacianformer._util.files import replacing, writing
from laplacianformer.attention import GridAttention, LaplacianAttention
from laplacianformer.classification._batches import Loaders, open_loaders
from laplacianformer.convert._calibration import calibrate, fit_reduced
from laplacianformer.convert._held_out import HeldOut
from laplacianformer.convert._learn import adapt, fold
from laplacianformer.convert._recipe import Convert, ConvertRecipe, PhaseName, without_paths
from laplacianformer.convert._tasks import DistilTask, MatchTask, Work
from laplacianformer.convert._teacher import TeacherModel, check_images, check_rebuilt, load_teacher
from laplacianformer.data import NO_LABEL, mix, seed_all
from laplacianformer.inspect._matching import watch
from laplacianformer.model._conversion import Conversion, exchange, softmax_layers, take_over
from laplacianformer.training import _checkpoint as checkpoint
from laplacianformer.training._loop import Loop
from laplacianformer.training._origin import origin
from laplacianformer.training._processes import in_each, in_first
from laplacianformer.training._report import Report, Silent, Table
from laplacianformer.training._session import Session, start
from laplacianformer.weights._file import FORBIDDEN, checked_metadata


@dataclass(frozen=True)
class Result:
    """The end of a conversion. Accuracies are fractions of the held-out images, NaN where there are no labels."""

    model: nn.Module  # in evaluation mode
    weights: Path
    agreement: float  # fraction of held-out images with the teacher's class
    accuracy: float
    teacher_accuracy: float
    steps: int
    seconds: float  # of this process, without what was done before a resume


def train(
    recipe: ConvertRecipe,
    output: Path,
    *,
    resume: bool = False,
    report: Report | None = None,
    allow_pipes: bool = False,
    weights: Path | None = None,
) -> Result:
    """Convert as the recipe says, into the folder `output`: match/ and distil/ with metrics.csv, checkpoints and
    weights each; distil/model.safetensors is the result.

    Args:
        resume: continue from the checkpoints in the folder, if there are any.
        report: is told how the run goes; without it nothing is printed.
        allow_pipes: whether data.root may be a shell command (reader wds/, pipe:COMMAND).
        weights: a file that gets a copy of the result.
    """
    with start(recipe.run, output, resume=resume, report=report) as session:
        fabric = session.fabric
        in_first(fabric, lambda: _check_new(output, resume=resume))
        teacher = in_each(fabric, lambda: load_teacher(recipe.teacher))
        loaders = opened(recipe, "match", fabric, allow_pipes), opened(recipe, "distil", fabric, allow_pipes)
        result = run(recipe, teacher, loaders, session)
        if weights is not None:
            in_first(fabric, lambda: _copy(result.weights, weights))
            session.report.end([Table("Converted", (), (("weights", str(weights)),))])
        return result


def _copy(file: Path, other: Path) -> None:
    with replacing(other) as written:
        written.write(file.read_bytes())


def opened(recipe: ConvertRecipe, phase: PhaseName, fabric: Any, allow_pipes: bool = False) -> Loaders:
    """The batches of a phase, for this process."""
    rank, world, once = fabric.global_rank, fabric.world_size, partial(in_first, fabric)
    try:
        return in_each(fabric, lambda: open_loaders(recipe.phase(phase), rank, world, once, allow_pipes=allow_pipes))
    except InputError as error:  # the section `optimise` has the name of the phase here
        raise InputError(str(error).replace("optimise.", f"{phase}.")) from None


def _check_new(output: Path, *, resume: bool) -> None:
    if not resume and any(checkpoint.exists(output / phase) for phase in ("match", "distil")):
        raise InputError(f"{output} already holds a run: pass --resume to continue it, or another --output")


def run(
    recipe: ConvertRecipe,
    teacher: TeacherModel,
    loaders: tuple[Loaders, Loaders],
    session: Session,
    digest: str = "",
) -> Result:
    """The three phases. Everything that can be refused is refused before the first step.

    digest: of the images, where a run that continues can be told whether they are the same.
    """
    fabric, output = session.fabric, session.output
    seed_all(mix(recipe.run.seed, 4))
    student = copy.deepcopy(teacher.model)
    layers = in_each(fabric, lambda: exchange(student, _conversion(teacher.model, recipe.convert)))
    names, numbers = _outputs(teacher, loaders[0].classes, recipe.convert)
    metadata = in_each(fabric, lambda: _metadata(session.weights, recipe, teacher, student, names))
    teacher.model.to(fabric.device)
    student.to(fabric.device)
    few = _first_images(fabric, loaders[0], recipe.convert.calibration_images)
    in_each(fabric, lambda: check_images(teacher, few))
    if teacher.given:
        in_each(fabric, lambda: check_rebuilt(teacher, few[:4]))
    if not in_first(fabric, lambda: session.resume and checkpoint.exists(output / "match")):
        errors = start_layers(teacher.model, layers, few, session.report)
        in_first(fabric, lambda: _write_start(output / "match", errors))
    in_each(fabric, lambda: adapt(layers.values(), recipe.convert))
    limit = recipe.data.corrupt_limit
    held_out = HeldOut(fabric, teacher, loaders[1].val, numbers, limit)
    work = Work(teacher, student, layers, fabric, held_out, metadata, numbers, digest)
    steps, seconds = 0, 0.0
    kinds: tuple[type[MatchTask | DistilTask], ...] = (MatchTask, DistilTask)
    for kind, loaded in zip(kinds, loaders, strict=True):
        task = kind(recipe.phase(kind.phase), work, loaded)
        loop = Loop(task, dataclasses.replace(session, output=output / kind.phase, lock=None))
        done = loop.run()
        steps, seconds = steps + done.steps, seconds + done.seconds
    model = task.whole(loop.learner.evaluated).eval()
    fold(model)
    return Result(model, done.weights, task.agreement, task.accuracy, held_out.teacher_accuracy, steps, seconds)


def _first_images(fabric: Any, loaders: Loaders, count: int) -> Tensor:
    """Some training images, the same in all processes: what starts from them starts alike."""
    few = fabric.to_device(torch.cat(list(_some(loaders, -(-count // fabric.world_size)))))
    return few if fabric.world_size == 1 else fabric.all_gather(few).flatten(0, 1)


def _some(loaders: Loaders, count: int) -> Iterator[Tensor]:
    """The first training images, in batches, `count` of them or what there is."""
    for batch in loaders.train.epoch(0):
        yield batch.images[:count]
        count -= len(batch.images)
        if count <= 0:
            return


def _conversion(model: nn.Module, convert: Convert) -> Conversion:
    names = list(softmax_layers(model))
    chosen = range(len(names)) if convert.layers is None else sorted(set(convert.layers))
    if wrong := [number for number in chosen if number >= len(names)]:
        raise InputError(f"there is no attention layer {wrong[0]}: the model has {len(names)}, 0 to {len(names) - 1}")
    return Conversion(convert.attention, convert.attention_args, tuple(names[number] for number in chosen))


def start_layers(
    teacher: nn.Module, layers: dict[str, GridAttention], images: Tensor, report: Report | None = None
) -> dict[str, Tensor]:
    """The first phase: weights are taken over, and scale and gain of each head are fitted to a few images. Returns the
    relative squared error of each head, by layer, of the layers that have a scale."""
    report, errors = report or Silent(), {}
    report.start("start", len(layers), 0)
    try:
        seen = watch(teacher, list(layers), images)
        for number, (name, layer) in enumerate(layers.items(), 1):
            old = teacher.get_submodule(name)
            take_over(old, layer)
            if getattr(old, "sr", None) is not None:
                fit_reduced(layer, old, seen[name].x, seen[name].size)
            if isinstance(layer, LaplacianAttention) and not layer.tied:
                errors[name] = calibrate(layer, seen[name].x, seen[name].size, seen[name].heads).cpu()
            report.advance(number)
        if errors:
            of_heads = torch.cat(list(errors.values()))
            low, mean, high = (f"{value.item():.3f}" for value in (of_heads.min(), of_heads.mean(), of_heads.max()))
            said = f"relative squared error per head {low} to {high}, mean {mean}"
            report.row(of_heads.mean().item(), f"start, {len(errors)} layers on {len(images)} images: {said}")
    finally:
        report.stop()
    return errors


def _write_start(folder: Path, errors: dict[str, Tensor]) -> None:
    """start.csv: what the first phase left of each head's error, before anything was trained."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{name},{head},{error:.6g}" for name, each in errors.items() for head, error in enumerate(each.tolist())]
    with replacing(folder / "start.csv") as file:
        file.write("\n".join(["layer,head,error", *lines, ""]).encode())


def _outputs(teacher: TeacherModel, data: Sequence[str], convert: Convert) -> tuple[tuple[str, ...], list[int]]:
    """The names of the outputs, and for each class of the data the output that it stands for, or NO_LABEL."""
    names = teacher.classes
    if names is None and len(data) == teacher.outputs:
        names = tuple(data)
    if names is None:
        names = tuple(str(number) for number in range(teacher.outputs))
    index = {name: number for number, name in enumerate(names)}
    numbers = [index.get(name, NO_LABEL) for name in data]
    if not teacher.outputs and not convert.features:
        raise InputError(
            f"{teacher.name} has no classes, so without features nothing is learned: give convert.features"
        )
    if convert.labels and NO_LABEL in numbers:
        unknown = data[numbers.index(NO_LABEL)]
        raise InputError(f"convert.labels needs labels that the teacher knows, and it doesn't know {unknown}")
    return names, numbers


def _metadata(
    path: Path, recipe: ConvertRecipe, teacher: TeacherModel, student: nn.Module, names: Sequence[str]
) -> dict[str, str]:
    """What the weights file will say, or the error of writing it, before the run and not after it."""
    lasting = {key: value for key, value in teacher.args.items() if key not in FORBIDDEN}
    stated = {
        "architecture": teacher.name,
        "model_args": json.dumps({**lasting, "num_classes": teacher.outputs}),
        "input": json.dumps(recipe.data.input),
        "converted_from": json.dumps(teacher.origin()),
        **origin(without_paths(recipe), {}),
    }
    return checked_metadata(path, student, names, stated)
