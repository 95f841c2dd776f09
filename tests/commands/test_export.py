"""`laplacianformer export`: nothing is kept that does not compute what the model does."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from laplacianformer._util.tensor_files import read_tensors, write_tensors
from laplacianformer.export import _exported as exported
from tests.export.helpers import code_of
from tests.helpers import CLASSES, save_small


@pytest.fixture
def file(tmp_path):
    save_small(tmp_path / "model.safetensors")
    return str(tmp_path / "model.safetensors")


def writes(monkeypatch, change):
    """In place of a real export: the model itself, with `change` applied to its outputs."""
    monkeypatch.setattr(
        exported,
        "export_model",
        lambda loaded, format, **_: exported.Exported(b"whole", lambda images: change(loaded.model(images))),
    )


def test_what_computes_the_same_is_kept_and_differences_are_printed(file, tmp_path, monkeypatch, capsys):
    writes(monkeypatch, lambda logits: logits * (1 + 1e-5))
    output = tmp_path / "new" / "model.onnx"
    assert code_of(["export", "--weights", file, "--format", "onnx", str(output)]) == 0
    assert output.read_bytes() == b"whole"
    printed = capsys.readouterr().out
    assert printed.count("1.0e-05") == 3
    assert "1 x 3 x 32 x 32" in printed


@pytest.mark.parametrize("change", [lambda logits: logits * 1.01, lambda logits: logits * float("nan")])
def test_what_computes_something_else_is_rejected_and_leaves_nothing(file, tmp_path, monkeypatch, capsys, change):
    writes(monkeypatch, change)
    output = tmp_path / "out" / "model.onnx"
    assert code_of(["export", "--weights", file, "--format", "onnx", str(output)]) == 2
    assert "was not written: it differs by" in capsys.readouterr().err
    assert not output.parent.exists()


@pytest.mark.parametrize("form", ["hf", "onnx", "pt2"])
@pytest.mark.parametrize(
    ("tensor", "number", "layer"),
    [
        ("head.weight", torch.nan, "the weights head.weight are already not finite"),
        ("stages.0.blocks.0.attention.whitening.running_var", torch.nan, "output is not finite is stages.0.blocks.0"),
        ("stages.1.blocks.0.norm1.weight", 1e38, "output is not finite is stages.1.blocks.0"),
    ],
)
def test_what_is_not_finite_is_an_error_that_names_the_layer(file, tmp_path, capsys, form, tensor, number, layer):
    tensors, metadata = read_tensors(Path(file))
    tensors[tensor].view(-1)[0] = number
    write_tensors(Path(file), tensors, metadata)
    output = tmp_path / ("out" if form == "hf" else f"out.{form}")
    assert code_of(["export", "--weights", file, "--format", form, str(output)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "gives outputs that are not finite" in line
    assert layer in line
    assert not output.exists()


def test_the_change_of_accuracy_is_measured(file, tmp_path, monkeypatch, capsys):
    for name in CLASSES:
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.fromarray(np.full((32, 32, 3), 90, np.uint8)).save(tmp_path / "data" / name / "0.png")
    writes(monkeypatch, lambda logits: logits * 1.01)
    arguments = ["--precision", "int8", "--data", str(tmp_path / "data"), str(tmp_path / "model.onnx")]
    assert code_of(["export", "--weights", file, "--format", "onnx", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "top-1 of the model: 14.29 % of 7 images" in printed
    assert "top-1 of the export: 14.29 %, a change of +0.00 points" in printed


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ["--format", "hf", "--precision", "int8", "out"],
            "--precision int8 is for --format onnx and pt2, got --format hf",
        ),
        (["--format", "onnx", "--precision", "bfloat16", "out.onnx"], "--precision bfloat16 is for --format pt2"),
        (["--format", "pt2", "--precision", "bfloat16", "out.pt2"], "a package in bfloat16 is for one image size"),
        (["--format", "pt2", "--precision", "int8", "out.pt2"], "needs images to calibrate with: give --data DIR"),
        (["--format", "onnx", "--size", "32", "32", "out.onnx"], "--size is for --format pt2"),
        (["--format", "pt2", "--kernels", "out.pt2"], "--kernels is for --format onnx, got --format pt2"),
        (["--format", "hf", "--kernels", "out"], "--kernels is for --format onnx, got --format hf"),
        (["--format", "pt2", "--size", "32", "0", "out.pt2"], "at least 1 pixel and at most 8192, got 32 0"),
        (["--format", "pt2", "--size", "40", "32", "--data", "taken.onnx", "out.pt2"], "--size says (40, 32)"),
        (["--format", "pt2", "--data", "gone", "out.pt2"], "gone"),
        (["--format", "onnx", "out.pt2"], "expected a file name that ends with .onnx"),
        (["--format", "pt2", "out.onnx"], "expected a file name that ends with .pt2"),
        (["--format", "onnx", "taken.onnx"], "it is a folder"),
        (["--format", "onnx", "--weights", "gone.safetensors", "out.onnx"], "gone.safetensors is not there"),
    ],
)
def test_wrong_input_ends_with_code_2_and_leaves_nothing(file, tmp_path, monkeypatch, capsys, arguments, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.onnx").mkdir()
    before = sorted(tmp_path.iterdir())
    assert code_of(["export", "--weights", file, *arguments]) == 2
    captured = capsys.readouterr()
    assert reason in captured.err
    assert captured.err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_a_model_of_another_package_is_rejected(tmp_path, capsys):
    import timm

    from laplacianformer.weights import save_weights

    torch.manual_seed(0)
    path = tmp_path / "other.safetensors"
    save_weights(path, timm.create_model("resnet10t", num_classes=2), classes=["a", "b"], metadata={})
    assert code_of(["export", "--weights", str(path), "--format", "onnx", str(tmp_path / "out.onnx")]) == 2
    assert "a ResNet can't be exported: expected a model of this package" in capsys.readouterr().err
