"""A conversion from start to end: what it learns and writes, that it resumes bit for bit, and its file in every use."""

import copy
import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from laplacianformer import load_weights, save_weights
from laplacianformer._util.errors import InputError
from laplacianformer.classification import predict
from laplacianformer.convert import Teacher, convert, load_recipe, train
from laplacianformer.convert._run import start_layers
from laplacianformer.convert._teacher import load_teacher, read_classes
from laplacianformer.export._check import differences
from laplacianformer.export._exported import export_model, tolerance
from laplacianformer.model._conversion import Conversion, exchange, softmax_layers
from laplacianformer.training import Silent
from tests.convert.helpers import ONCE, ONE_STAGE, QUICK, SIDE, Stop, Stopping, arguments, images, teacher
from tests.helpers import picture
from tests.training.helpers import rows

CLASSES = ("class2", "class0", "class1", "other", "more")  # not in the order of the folders


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher in a file, the names of its outputs, and images."""
    folder = tmp_path_factory.mktemp("convert")
    save_file(teacher().state_dict(), folder / "teacher.safetensors")
    (folder / "classes.json").write_text(json.dumps({name: number for number, name in enumerate(CLASSES)}))
    for number in range(30):
        path = folder / "data" / ("val" if number < 6 else "train") / f"class{number % 3}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number, (SIDE, SIDE)).save(path)
    return folder


def recipe(folder: Path, *overrides: str) -> Any:
    said = (
        *("teacher.name=vit_tiny_patch16_224", f"teacher.args={json.dumps(arguments())}"),
        *(f"teacher.weights={folder / 'teacher.safetensors'}", f"teacher.classes={folder / 'classes.json'}"),
        *(f"data.root={folder / 'data'}", f"data.size={SIDE}"),
    )
    return load_recipe("convert-vit", [*said, *QUICK, *overrides])


@pytest.fixture(scope="module")
def finished(folder: Path) -> tuple[Path, Any]:
    return folder / "run", train(recipe(folder), folder / "run")


def test_a_run_matches_then_distils(finished: tuple[Path, Any]) -> None:
    run, result = finished
    matched, distilled = rows(run / "match"), rows(run / "distil")
    assert float(matched[-1]["loss"]) < 0.9 * float(matched[0]["loss"])
    assert float(distilled[-1]["features_loss"]) < float(distilled[0]["features_loss"])
    assert all(float(row["loss"]) <= float(row["worst_error"]) for row in matched)
    assert result.agreement == float(distilled[-1]["agreement"])
    assert result.accuracy == float(distilled[-1]["validation_accuracy"])
    assert 0 <= result.teacher_accuracy <= 1
    assert result.steps == 24 + 8


def test_the_first_phase_tells_what_it_left_of_the_error(finished: tuple[Path, Any], tmp_path: Path) -> None:
    """Per head, in a file beside the metrics of `match`, and in a line; before anything is trained."""
    told: list[str] = []

    class Listening(Silent):
        def start(self, title: str, steps: int, step: int) -> None:
            told.append(f"{title}: {steps}")

        def row(self, loss: float, line: str) -> None:
            told.append(line)

    model = teacher()
    twin = copy.deepcopy(model)
    layers = exchange(twin, Conversion("laplacian", {"grid": 2, "gain": "learned"}, tuple(softmax_layers(model))))
    errors = start_layers(model, layers, images(8), Listening())
    assert told[0] == "start: 2"
    of_heads = torch.cat(list(errors.values()))
    assert told[1].startswith(f"start, 2 layers on 8 images: relative squared error per head {of_heads.min():.3f} to")

    run, _ = finished
    with (run / "match" / "start.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    layers = ("blocks.0.attn", "blocks.1.attn")
    assert [(row["layer"], row["head"]) for row in found] == [(name, head) for name in layers for head in "01"]
    assert all(0 < float(row["error"]) < 1 for row in found)


def test_the_file_says_what_it_was_made_from_and_loads(finished: tuple[Path, Any], folder: Path) -> None:
    _, result = finished
    loaded = load_weights(result.weights)
    assert loaded.classes == CLASSES
    x = images()
    assert torch.equal(loaded.model(x), result.model(x))
    assert not torch.equal(loaded.model(x), teacher()(x))
    origin = json.loads(loaded.metadata["converted_from"])
    assert (origin["architecture"], origin["weights"]) == ("vit_tiny_patch16_224", "teacher.safetensors")
    assert len(origin["sha256"]) == 64
    assert str(folder) not in str(loaded.metadata)
    measured = json.loads(loaded.metadata["metrics"])
    assert measured["agreement"] == result.agreement
    pictures = [str(path) for path in sorted((folder / "data/val/class0").iterdir())]
    assert all(found.ranking[0][0] in CLASSES for found in predict(loaded, pictures, device="cpu"))


def test_a_converted_model_is_saved_like_any_other(finished: tuple[Path, Any], tmp_path: Path) -> None:
    _, result = finished
    stated = load_weights(result.weights).metadata
    again = {key: stated[key] for key in ("model_args", "input")}  # timm's models don't say how they were built
    save_weights(tmp_path / "again.safetensors", result.model, classes=CLASSES, metadata=again)
    x = images()
    assert torch.equal(load_weights(tmp_path / "again.safetensors").model(x), result.model(x))


@pytest.mark.parametrize("said", ["[]", '{"attention": "laplacian"}', '{"layers": [1], "attention_args": {}}'])
def test_a_file_with_a_conversion_that_can_not_be_is_refused(
    finished: tuple[Path, Any], tmp_path: Path, said: str
) -> None:
    _, result = finished
    loaded, path = load_weights(result.weights), tmp_path / "wrong.safetensors"
    save_file(load_file(result.weights), path, {**loaded.metadata, "converted": said})
    with pytest.raises(InputError, match="converted in the metadata"):
        load_weights(path)


@pytest.mark.slow
def test_an_interrupted_run_continues_bit_for_bit(finished: tuple[Path, Any], folder: Path, tmp_path: Path) -> None:
    run, result = finished
    for phase, step in (("match", 4), ("distil", 5)):
        with pytest.raises(Stop):
            train(recipe(folder), tmp_path / "run", resume=True, report=Stopping(phase, step))
    again = train(recipe(folder), tmp_path / "run", resume=True)
    first, second = load_file(result.weights), load_file(again.weights)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert (again.agreement, again.teacher_accuracy) == (result.agreement, result.teacher_accuracy)
    for phase in ("match", "distil"):
        assert [row["loss"] for row in rows(run / phase)] == [row["loss"] for row in rows(tmp_path / "run" / phase)]
    with pytest.raises(InputError, match="already holds a run"):
        train(recipe(folder), tmp_path / "run")
    with pytest.raises(InputError, match=r"another convert\.features"):
        train(recipe(folder, "convert.features=3"), tmp_path / "run", resume=True)


def test_a_model_and_a_tensor_are_enough() -> None:
    """Without labels: the accuracy is unknown. The teacher stays as it was."""
    model = teacher().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    overrides = [*QUICK, "distil.ema_decay=0.9"]
    result = convert(model, images(20), layers=[1], model_args=arguments(), overrides=overrides)
    assert math.isnan(result.accuracy)
    assert result.model.conversion.layers == ("blocks.1.attn",)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert result.model(images()).shape == (2, 5)


def test_a_model_that_its_file_could_not_describe_is_refused() -> None:
    with pytest.raises(InputError, match="give model_args"):
        convert(teacher(), images(20), overrides=QUICK)


@pytest.mark.slow
def test_a_model_without_classes_is_compared_by_its_features() -> None:
    model = teacher("registers", num_classes=0)
    overrides = [*QUICK, "match.epochs=1", "distil.epochs=1"]
    result = convert(model, images(20), model_args=arguments("registers"), overrides=overrides)
    cosine = torch.cosine_similarity(result.model(images(20)[::10]), model(images(20)[::10])).mean().item()
    assert result.agreement == pytest.approx(cosine, abs=1e-5)
    assert 0.2 < cosine < 1


@pytest.mark.parametrize("family", ["pvt", "own"])
def test_pyramids_are_converted_too(family: str) -> None:
    overrides = [*QUICK, "match.epochs=1", "distil.epochs=1"]
    result = convert(teacher(family), images(20), model_args=arguments(family), overrides=overrides)
    assert len(result.model.conversion.layers) == 2
    assert 0 <= result.agreement <= 1


@pytest.mark.parametrize("control", ["mean-over-queries", "ablation"])
def test_controls_are_converted_under_the_same_budget(control: str) -> None:
    options = {"ablation": "{kernel: gaussian, grid: 2, gain: learned}"}.get(control, "{}")
    chosen = [f"convert.attention={control}", f"convert.attention_args={options}", "match.epochs=1", "distil.epochs=1"]
    result = convert(teacher(), images(20), model_args=arguments(), overrides=[*QUICK, *chosen])
    assert math.isfinite(result.agreement)


BAD = {
    "few images": (["match.batch_size=100"], r"match\.batch_size=100 is more than the 24 training samples"),
    "no such layer": (["convert.layers=[2]"], "no attention layer 2: the model has 2, 0 to 1"),
    "options": (["convert.attention_args={grid: 0}"], "grid must be at least 1"),
    "no such model": (["teacher.name=vit_of_nobody"], "vit_of_nobody"),
    "other weights": (["teacher.args={}"], "does not hold the vit_tiny_patch16_224"),
    "no weights": (["teacher.weights=nothing.pth"], "can't read the weights nothing.pth"),
    "labels": (["convert.labels=1", "teacher.classes=null"], "labels that the teacher knows"),
    "another size": (["data.size=48"], "takes images of 32 x 32 pixels.*dynamic_img_size"),
    "nothing to learn": (["convert.logits=0", "convert.features=0"], "nothing is learned"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_before_anything_is_trained(folder: Path, tmp_path: Path, case: str) -> None:
    overrides, reason = BAD[case]
    with pytest.raises(InputError, match=reason):
        train(recipe(folder, *overrides), tmp_path / "run")
    assert not list(tmp_path.rglob("metrics.csv"))


def test_a_teacher_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    model = teacher()
    with torch.no_grad():
        model.blocks[1].mlp.fc1.weight[0] = 1e38
    with pytest.raises(InputError, match="not finite"):
        convert(model, images(20), tmp_path / "run", model_args=arguments(), overrides=QUICK)
    assert not list(tmp_path.rglob("metrics.csv"))


def test_the_number_of_classes_is_that_of_the_file(tmp_path: Path) -> None:
    """Also of a distilled DeiT, which has two heads."""
    save_file(teacher("deit").state_dict(), tmp_path / "deit.safetensors")
    file, name = str(tmp_path / "deit.safetensors"), "deit_tiny_distilled_patch16_224"
    said = Teacher(name=name, weights=file, args=arguments("deit"))
    assert load_teacher(said).outputs == 5


@pytest.mark.parametrize("text", ["[1]", '["a"]', '{"a": [], "b": 1}', '{"a": 0, "b": 7}', '["a", "a"]', "not JSON"])
def test_names_of_outputs_that_do_not_fit_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "classes.json").write_text(text)
    with pytest.raises(InputError, match=r"classes\.json"):
        read_classes(tmp_path / "classes.json", 2)


@pytest.mark.slow
def test_onnx_computes_what_a_converted_model_does(finished: tuple[Path, Any]) -> None:
    """For the size of the file, and any batch."""
    pytest.importorskip("onnxscript")
    _, result = finished
    _assert_exports(load_weights(result.weights))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "changed"), [("registers", {}), ("pvt", {}), ("own", ONE_STAGE)])
def test_onnx_computes_what_a_converted_model_of_every_family_does(family: str, changed: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    given = arguments(family) | changed
    result = convert(teacher(family, **changed), images(20), tmp_path, model_args=given, overrides=ONCE)
    _assert_exports(load_weights(result.weights))


def _assert_exports(loaded: Any) -> None:
    exported = export_model(loaded, "onnx")
    assert all(found.relative < tolerance("float32") for found in differences(loaded, exported.run))
