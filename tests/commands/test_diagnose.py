"""`laplacianformer diagnose`: the tables of `diagnose` and `compare_attention` for weights in a file."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from laplacianformer import diagnose, load_weights, save_weights
from laplacianformer.cli import main
from laplacianformer.data import _images as pictures
from laplacianformer.inspect import compare_attention
from laplacianformer.model._conversion import Conversion, exchange
from tests.convert.helpers import save_teacher, teacher
from tests.convert.test_conversion import converted
from tests.helpers import picture, save_small

COUNT = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, a converted model, and its teacher as a weights file and as bare tensors."""
    folder = tmp_path_factory.mktemp("diagnose")
    (folder / "images").mkdir()
    for number in range(COUNT):
        picture(number).save(folder / "images" / f"{number}.png")
    save_teacher(folder / "teacher.safetensors", teacher())
    torch.save(teacher().state_dict(), folder / "teacher.pth")
    save_teacher(folder / "converted.safetensors", converted(teacher()))
    for name, changed in {"wide": {"embed_dim": 32}, "large": {"img_size": 64}}.items():
        save_teacher(folder / f"{name}.safetensors", teacher(**changed), **changed)
    save_weights(folder / "own.safetensors", teacher("own"), classes=list("abcde"), metadata={})
    save_small(folder / "small.safetensors")
    broken = teacher()
    with torch.no_grad():
        broken.blocks[0].mlp.fc1.weight[0] = math.nan
    save_teacher(folder / "nan.safetensors", broken)
    return folder


def run(*arguments: Any) -> Any:
    try:
        main(["diagnose", *map(str, arguments)])
    except SystemExit as stop:
        return stop.code
    return 0


def inputs(file: Path, numbers: Any = range(COUNT)) -> torch.Tensor:
    transform = pictures.to_input(load_weights(file).input)
    return torch.stack([transform(picture(number)) for number in numbers])


def test_layers_are_those_of_the_function(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "small.safetensors"
    assert run("--weights", file, folder / "images", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    expected = diagnose(load_weights(file).model, inputs(file))
    assert found == {"weights": str(file), "images": COUNT, "layers": [asdict(row) for row in expected]}
    assert run("--weights", file, folder / "images", "--most", "3", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["layers"] == [asdict(row) for row in diagnose(load_weights(file).model, inputs(file, (0, 2, 4)))]
    assert run("--weights", file, folder / "images") == 0
    out = capsys.readouterr().out
    assert all(row.layer in out and f"{row.kernel_mean:.3g}" in out for row in expected)


@pytest.mark.parametrize(
    "form",
    [
        ("--teacher", "teacher.safetensors"),
        ("--teacher", "vit_tiny_patch16_224", "--teacher-weights", "teacher.pth"),
    ],
)
def test_a_converted_model_is_compared_with_its_teacher(
    folder: Path, form: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert run("--weights", "converted.safetensors", "images", *form, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    file = Path("converted.safetensors")
    expected = compare_attention(load_weights(file).model, teacher(), inputs(file))
    for row, same in zip(found["matching"], expected, strict=True):
        assert row["layer"] == same.layer
        assert (row["error"], row["cosine"]) == pytest.approx((same.error, same.cosine), rel=1e-5)
    assert [row["layer"] for row in found["layers"]] == [row.layer for row in expected]
    assert run("--weights", "converted.safetensors", "images", *form) == 0
    out, err = capsys.readouterr()
    assert "cosine of attention rows" in out
    assert f"{expected[1].error:.3f}" in out
    assert err == ""


def test_mixers_that_only_a_teacher_can_judge(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = teacher()
    exchange(model, Conversion("linear", {}, ("blocks.0.attn",)))
    save_teacher(tmp_path / "linear.safetensors", model)
    given = ("--weights", tmp_path / "linear.safetensors", folder / "images")
    assert run(*given) == 2
    assert "no LaplacianAttention to diagnose" in capsys.readouterr().err
    assert run(*given, "--teacher", folder / "teacher.safetensors", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["layers"] == []
    assert [row["layer"] for row in found["matching"]] == ["blocks.0.attn"]


def test_weights_of_another_teacher_are_pointed_out(folder: Path, tmp_path: Path, capsys: Any) -> None:
    loaded = load_weights(folder / "converted.safetensors")
    said = {**{key: loaded.metadata[key] for key in ("model_args", "input")}, "converted_from": '{"sha256": "0"}'}
    save_weights(tmp_path / "other.safetensors", loaded.model, classes=loaded.classes, metadata=said)
    code = run(
        "--weights", tmp_path / "other.safetensors", folder / "images", "--teacher", folder / "teacher.safetensors"
    )
    assert code == 0
    assert "was converted from other weights than those of the teacher" in capsys.readouterr().err


def test_some_images_can_not_be_read(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.png").write_text("no image")
    given = ("--weights", folder / "converted.safetensors", tmp_path / "broken.png")
    assert run(*given, folder / "images", "--json") == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["images"] == COUNT
    assert "broken.png: not an image" in err
    assert run(*given) == 2
    assert "no image could be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("weights", "given", "reason"),
    [
        ("teacher", (), "no LaplacianAttention to diagnose"),
        ("converted", ("--teacher-weights", "teacher.pth"), "name it with --teacher"),
        ("small", ("--teacher", "teacher.safetensors"), "is not converted"),
        ("converted", ("--teacher", "converted.safetensors"), "no softmax attention"),
        ("converted", ("--teacher", "own.safetensors"), "the teacher has no softmax attention blocks.0.attn"),
        (
            "converted",
            ("--teacher", "wide.safetensors"),
            "has 2 heads, 32 channels and 1 leading tokens in the teacher",
        ),
        (
            "converted",
            ("--teacher", "large.safetensors"),
            "images of 64 x 64 pixels alone, and the model those of 32 x",
        ),
        ("converted", ("--teacher", "nan.safetensors"), "not finite"),
        ("converted", ("--teacher", "vit_of_nobody", "--teacher-weights", "teacher.pth"), "vit_of_nobody"),
        ("nan", (), "outputs that are not finite: the weights blocks.0.mlp.fc1.weight"),
    ],
)
def test_what_can_not_be_is_refused_in_one_line(
    folder: Path,
    weights: str,
    given: tuple[str, ...],
    reason: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    assert run("--weights", f"{weights}.safetensors", "images", *given) == 2
    err = capsys.readouterr().err
    assert reason in err
    assert len(err.splitlines()) == 1
