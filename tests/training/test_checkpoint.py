"""Checkpoints that are not what a run wrote: damage is found, and what was made by hand gets one clear line."""

import copy
import io
import itertools
import logging
import os
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from laplacianformer._util.errors import InputError
from laplacianformer.classification import Recipe
from laplacianformer.classification import _task as classification
from laplacianformer.training import Loop
from laplacianformer.training import _checkpoint as checkpoint

from ..test_limits import MERGED
from . import helpers


class Stopped(Exception):
    """In place of a killed process."""


def stopped_at(step: int) -> Callable[[Loop, Any], None]:
    def advance(loop: Loop, batch: Any, advance: Callable[..., None] = Loop.advance) -> None:
        if loop.step == step:
            raise Stopped
        advance(loop, batch)

    return advance


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    """A run that stopped in step 8 of 16, with the checkpoints of steps 4 and 6."""
    folder = tmp_path_factory.mktemp("begun")
    recipe = helpers.tiny(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "advance", stopped_at(7))
        with pytest.raises(Stopped):
            classification.train(recipe, folder / "run")
    return recipe, folder / "run"


@pytest.fixture
def run(begun: tuple[Recipe, Path], tmp_path: Path) -> Path:
    """A copy of its folder."""
    for name in ("checkpoint.pt", "checkpoint.previous.pt", "metrics.csv"):
        (tmp_path / name).write_bytes((begun[1] / name).read_bytes())
    return tmp_path


def refusal(recipe: Recipe, folder: Path) -> str:
    with pytest.raises(InputError) as error:
        classification.train(recipe, folder, resume=True)
    assert "\n" not in str(error.value)
    assert not (folder / "model.safetensors").exists()
    return str(error.value)


# ---- damage ----


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def zeroed(content: bytes, place: int) -> bytes:
    return content[:place] + bytes(len(content[place : place + 4096])) + content[place + 4096 :]


DAMAGES: dict[str, Callable[[bytes, int], bytes]] = {
    "a flipped bit": flipped,
    "4 KB of zeros": zeroed,
    "cut off": lambda content, place: content[:place],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_anywhere_is_found(run: Path, damage: str) -> None:
    """In tensors, in the directory of the file, in the checksum itself; what was damaged says so, nothing loads."""
    content, chance = (run / "checkpoint.pt").read_bytes(), random.Random(0)
    expected = checkpoint.load(run)
    for place in [0, len(content) - 90, len(content) - 60, *(chance.randrange(len(content)) for _ in range(40))]:
        (run / "checkpoint.pt").write_bytes(DAMAGES[damage](content, place))
        with pytest.raises(InputError, match=r"is damaged|can't read"):
            checkpoint.load(run)
    (run / "checkpoint.pt").write_bytes(content)
    assert checkpoint.load(run)["step"] == expected["step"] == 6


def test_the_checkpoint_before_a_damaged_one_is_named_and_continues(begun: tuple[Recipe, Path], run: Path) -> None:
    whole = classification.train(begun[0], run / "whole")
    content = (run / "checkpoint.pt").read_bytes()
    (run / "checkpoint.pt").write_bytes(flipped(content, len(content) // 2))
    said = refusal(begun[0], run)
    assert f"{run / 'checkpoint.pt'} is damaged" in said
    assert f"{run / 'checkpoint.previous.pt'} of step 4, is whole: remove {run / 'checkpoint.pt'}, and --resume" in said

    (run / "checkpoint.pt").unlink()
    classification.train(begun[0], run, resume=True)
    assert helpers.rows(run) == helpers.rows(whole.folder)
    expected, found = helpers.weights(whole.folder), helpers.weights(run)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_two_damaged_checkpoints_leave_only_another_folder(begun: tuple[Recipe, Path], run: Path) -> None:
    for path in run.glob("checkpoint*.pt"):
        path.write_bytes(flipped(path.read_bytes(), 5000))
    assert "can't be used either: give another --output" in refusal(begun[0], run)


def unsealed(state: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def test_a_checkpoint_of_an_earlier_version_continues_and_its_damage_is_found(
    begun: tuple[Recipe, Path], run: Path
) -> None:
    state = checkpoint.load(run)
    (run / "checkpoint.previous.pt").unlink()
    old = unsealed({key: value for key, value in state.items() if key not in ("sealed", "metrics")})
    with zipfile.ZipFile(io.BytesIO(old)) as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
    place = largest.header_offset + 256 + largest.file_size // 2
    (run / "checkpoint.pt").write_bytes(flipped(old, place))
    assert "does not have its checksum; there is none before it: give another --output" in refusal(begun[0], run)
    (run / "checkpoint.pt").write_bytes(old)
    assert classification.train(begun[0], run, resume=True).steps == 16


# ---- metrics.csv ----


@pytest.mark.parametrize("damage", ["flipped", "zeros", "removed", "text"])
def test_damaged_metrics_are_restored(begun: tuple[Recipe, Path], run: Path, damage: str, caplog) -> None:
    path = run / "metrics.csv"
    content = path.read_bytes()
    place = content.index(b"\n") + 20
    if damage == "removed":
        path.unlink()
    else:
        new = {"flipped": flipped(content, place), "zeros": zeroed(content, place), "text": b"step\n\xff,,,x\n" * 9}
        path.write_bytes(new[damage])
    with caplog.at_level(logging.WARNING):
        classification.train(begun[0], run, resume=True)
    assert [line for line in caplog.messages if "rows up to step 6 are restored from the checkpoint" in line]
    assert helpers.rows(run)[:3] == helpers.rows(begun[1])[:3]
    assert [row["step"] for row in helpers.rows(run)] == ["3", "4", "6", "8", "9", "12", "15", "16"]


def test_whole_metrics_are_kept_without_a_word(begun: tuple[Recipe, Path], run: Path, caplog) -> None:
    classification.train(begun[0], run, resume=True)
    assert caplog.messages == []


@pytest.mark.parametrize("line", ["x,1", "3,one", "3,1,2,3,4,5,6,7,8,9,10,11,12,13,14", "\0\0\0"])
def test_damaged_metrics_of_an_earlier_version_are_refused(begun: tuple[Recipe, Path], run: Path, line: str) -> None:
    """Their checkpoint doesn't have the rows."""
    state = checkpoint.load(begun[1])
    del state["metrics"], state["sealed"]
    (run / "checkpoint.pt").write_bytes(unsealed(state))
    with (run / "metrics.csv").open("a") as file:
        file.write(f"{line}\n")
    lines = len((run / "metrics.csv").read_text().splitlines())
    assert f"metrics.csv is damaged in line {lines}: repair the line" in refusal(begun[0], run)


# ---- made by hand ----


def change(key: str, *path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def changed(state: dict[str, Any]) -> None:
        target = state
        for step in (key, *path)[:-1]:
            target = target[step]
        target[(key, *path)[-1]] = to

    return changed


def first_state(state: dict[str, Any], **entries: Any) -> None:
    next(iter(state["optimiser"]["state"].values())).update(entries)


NAME = "head.weight"
KEYS = ("step", "model", "average", "optimiser", "sums", "seconds", "recipe", "classes", "images", "accuracy")
WRONG = (None, 3, -1, 2.5, float("nan"), "text", [], [1, 2, 3], {}, {"a": 1}, True, torch.zeros(2))
FITTING = {("step", "3"), ("images", "{}"), ("accuracy", "tensor([0., 0.])")}
FORMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    **{f"no {key}": lambda state, key=key: state.pop(key) for key in KEYS},
    # Every kind of value for every second key, in turn.
    **{
        f"{key} is {value}": change(key, to=value)
        for (i, key), (j, value) in itertools.product(enumerate(KEYS), enumerate(WRONG))
        if (i + j) % 2 and (key, str(value)) not in FITTING
    },
    "a step after the end": change("step", to=10**6),
    "an infinite step": change("step", to=float("inf")),
    "a weight of another shape": change("model", NAME, to=torch.zeros(7)),
    "a weight of integers": change("model", NAME, to=torch.zeros(3, 32, dtype=torch.long)),
    "complex weights": change("model", NAME, to=torch.zeros(3, 32, dtype=torch.complex64)),
    "a weight that is a list": change("model", NAME, to=[0.0]),
    "a sparse weight": change("model", NAME, to=torch.zeros(3, 32).to_sparse()),
    "a weight without numbers": change("model", NAME, to=torch.zeros(3, 32, device="meta")),
    "sparse moments": lambda state: first_state(state, exp_avg=torch.zeros(5).to_sparse()),
    "endless seconds of a whole number": change("seconds", to=[10**400, 0]),
    "an accuracy that no float holds": change("accuracy", to=[10**400, 0.0]),
    **{
        f"the recipe {text[:9]}": change("recipe", to=text)
        for text in ("a: " + "[" * 3000, "a: {b: !!int x}", "a: {b: 2020-99-99}", "a: {b: " + "9" * 5000 + "}")
    },
    "a step in the metrics of 5,000 digits": change("metrics", to="step,loss\n" + "9" * 5000 + ",1\n"),
    "a lone carriage return in the metrics": change("metrics", to="step,loss\n3,\r4\n"),
    "an unknown weight": change("model", "more", to=torch.zeros(1)),
    "a missing weight": lambda state: state["model"].pop(NAME),
    "a number for a name": lambda state: state["model"].update({3: torch.zeros(1)}),
    "an average of another shape": change("average", NAME, to=torch.zeros(7)),
    "no groups": lambda state: state["optimiser"].pop("param_groups"),
    "groups of others": lambda state: state["optimiser"]["param_groups"][0].update(params=[0]),
    "groups without parameters": lambda state: state["optimiser"]["param_groups"][0].pop("params"),
    "groups that are no list": change("optimiser", "param_groups", to={}),
    "a group that is none": change("optimiser", "param_groups", 0, to=3),
    "states that are numbers": change("optimiser", "state", to={0: 1}),
    "moments of another shape": lambda state: first_state(state, exp_avg=torch.zeros(5)),
    "moments that are text": lambda state: first_state(state, exp_avg="text"),
    "a missing moment": lambda state: next(iter(state["optimiser"]["state"].values())).pop("exp_avg_sq"),
    "betas that are text": lambda state: state["optimiser"]["param_groups"][0].update(betas="text"),
    "too few sums": change("sums", to=torch.zeros(1, dtype=torch.float64)),
    "a NaN among the sums": change("sums", 0, to=torch.nan),
    "negative seconds": change("seconds", to=[-1.0, 0.0]),
    "endless seconds": change("seconds", to=[float("inf"), 0.0]),
    "a recipe that is no YAML": change("recipe", to="{["),
    "a recipe of lists": change("recipe", to="model: [1]"),
    "a recipe that grows when it is read": change("recipe", to=MERGED),
    "another recipe": change("recipe", to="model: {name: other}"),
    "classes that are numbers": change("classes", to=[1, 2, 3]),
    "other classes": change("classes", to=["a", "b"]),
    "classes of two lines": change("classes", to=["a", "b\nc"]),
    "classes of many characters": change("classes", to=["a" * 5000]),
    "a step of 5,000 digits": change("step", to=10**5000),
    "images of 5,000 digits": change("images", to={"training": 10**5000}),
    "a recipe with many other keys": change("recipe", to=str({"model": {f"key{i}": i for i in range(500)}})),
    "images by number": change("images", to={1: 2}),
    "a fraction of an image": change("images", to={"training": 0.5}),
    "other images": change("images", to={"training": 3, "held-out": 3}),
    "accuracies that are text": change("accuracy", to=["a", "b"]),
    "metrics that are numbers": change("metrics", to=3),
    "metrics of another file": change("metrics", to="a,b\n1,2\n"),
}
WHOLE = {"nothing": None, "a list": [1], "a number": 3, "text": "step", "a tensor": torch.zeros(3), "empty": {}}


@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_made_by_hand_gets_one_clear_line(begun: tuple[Recipe, Path], run: Path, form: str) -> None:
    state = copy.deepcopy(checkpoint.load(run))
    FORMS[form](state)
    checkpoint.save(run, state)
    with pytest.raises(InputError) as error:  # noqa: PT012
        checkpoint.load(run)  # refuses most, without the rest of a start
        classification.train(begun[0], run, resume=True)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000
    assert str(run) in str(error.value)
    assert not (run / "model.safetensors").exists()


@pytest.mark.parametrize("form", WHOLE)
def test_a_file_that_holds_something_else_gets_one_clear_line(begun: tuple[Recipe, Path], run: Path, form: str) -> None:
    (run / "checkpoint.pt").write_bytes(unsealed(WHOLE[form]))
    assert "is not a checkpoint" in refusal(begun[0], run)


@pytest.mark.parametrize("content", [b"", b"x", b"PK\x03\x04", b"\x80\x02", bytes(5000)])
def test_a_file_that_is_none_of_torch_gets_one_clear_line(
    begun: tuple[Recipe, Path], run: Path, content: bytes
) -> None:
    (run / "checkpoint.pt").write_bytes(content)
    assert "can't read the checkpoint" in refusal(begun[0], run)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["checkpoint.pt", "metrics.csv"])
def test_a_named_pipe_in_the_folder_is_not_waited_for(begun: tuple[Recipe, Path], run: Path, name: str) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    assert f"can't read {run / name}: not a regular file" in refusal(begun[0], run)
