"""Segmenters as ONNX: one file for every size, and an example that needs only the file."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

onnx = pytest.importorskip("onnx", reason="install laplacianformer[export]")
pytest.importorskip("onnxscript", reason="install laplacianformer[export]")
onnxruntime = pytest.importorskip("onnxruntime", reason="install laplacianformer[export]")

from laplacianformer.attention._controls import NoMixing  # noqa: E402
from laplacianformer.cli import main  # noqa: E402
from laplacianformer.export import export_segmenter, segmenter_differences  # noqa: E402
from laplacianformer.export._onnx_model import OPSET, TRANSLATIONS, onnx_runner  # noqa: E402
from laplacianformer.segmentation import labels_of, load_segmenter, save_segmenter, semantic_fpn  # noqa: E402
from tests.export.helpers import code_of  # noqa: E402
from tests.helpers import picture  # noqa: E402
from tests.segmentation import helpers  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "segment_onnx.py"
LABELS = labels_of({"ignore": 9, "classes": [*helpers.CLASSES[:2], {"name": "house", "value": 7}]}, "it")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Weights and the ONNX file that the command made of them."""
    folder = tmp_path_factory.mktemp("onnx")
    weights, output = folder / "model.safetensors", folder / "model.onnx"
    # Tracing takes the time, and that of attention at every size is tested with classifiers.
    backbone = {**helpers.BACKBONE, "attention": "no-mixing", "attention_args": {}}
    save_segmenter(weights, helpers.small(backbone_args=backbone), labels=LABELS)
    main(["export", "--weights", str(weights), "--format", "onnx", str(output)])
    return weights, output


@pytest.mark.slow
def test_one_file_computes_what_the_segmenter_computes_at_every_size(exported: tuple[Path, Path]) -> None:
    weights, output = exported
    model, run = load_segmenter(weights).model, onnx_runner(output.read_bytes())
    for batch, height, width in ((1, 64, 64), (3, 37, 53), (2, 33, 130), (1, 20, 41)):
        images = torch.randn(batch, 3, height, width)
        with torch.inference_mode():
            torch.testing.assert_close(run(images), model(images), rtol=1e-4, atol=1e-4)
    session = onnxruntime.InferenceSession(output, providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == ["batch", 3, "height", "width"]
    assert session.get_outputs()[0].shape == ["batch", 3, "height", "width"]
    said = session.get_modelmeta().custom_metadata_map
    assert json.loads(said["labels"])["classes"][2]["value"] == 7
    assert b"/src/" not in output.read_bytes()  # nor where it was made


@pytest.mark.slow
def test_attention_is_exported_with_the_decoder(tmp_path: Path) -> None:
    """Images whose maps are filled up have masked attention. With UPerNet; Semantic FPN is exported above."""
    weights = tmp_path / "model.safetensors"
    backbone = {**helpers.BACKBONE, "attention_args": {"grid": 3, "iterations": 2}}
    save_segmenter(weights, helpers.small("upernet", backbone_args=backbone), labels=LABELS)
    loaded = load_segmenter(weights)
    for stage in loaded.model.maps.model.stages[:2]:  # tracing attention takes most of the time
        for block in stage.blocks:
            block.attention = NoMixing(block.attention.dim, block.attention.num_heads)
    run = export_segmenter(loaded).run
    found = list(segmenter_differences(loaded, run))
    assert all(each.relative < 1e-4 for each in found)
    assert any(length % 32 for each in found for length in each.shape[2:])
    for height, width in ((20, 41), (1, 7)):  # one token on a side in the last stage, which tracing did not see
        images = torch.randn(2, 3, height, width)
        with torch.inference_mode():
            torch.testing.assert_close(run(images), loaded.model(images), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_example_segments_as_the_package_does_without_it(exported: tuple[Path, Path], tmp_path: Path) -> None:
    weights, output = exported
    picture(3, (90, 61)).save(tmp_path / "photo.png")
    main(["segment", "--weights", str(weights), str(tmp_path / "photo.png"), "--output", str(tmp_path / "found")])
    given = [str(output), str(tmp_path / "photo.png"), str(tmp_path / "labels.png")]
    alone = f"import runpy, sys; sys.argv[1:] = {given!r}; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__'); "
    alone += "assert not {'torch', 'laplacianformer'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True, check=True)
    with Image.open(tmp_path / "labels.png") as one, Image.open(tmp_path / "found" / "photo-labels.png") as other:
        assert one.getpalette() == other.getpalette()
        assert (np.asarray(one) == np.asarray(other)).mean() > 0.999


class Pooling(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.adaptive_avg_pool2d(x, (3, 6))


def test_means_over_cells_are_those_of_torch_at_every_size() -> None:
    """Of UPerNet's pooling; ONNX has no operator for it. Fewer tokens than cells, as many, and more."""
    side = torch.export.Dim.AUTO(min=2)
    program = torch.export.export(
        Pooling(), (torch.zeros(2, 4, 11, 13),), dynamic_shapes=({0: torch.export.Dim.AUTO, 2: side, 3: side},)
    )
    exported = torch.onnx.export(
        program,
        dynamo=True,
        custom_translation_table=TRANSLATIONS,
        input_names=["images"],
        opset_version=OPSET,
        verbose=False,
    )
    assert exported is not None
    run = onnx_runner(exported.model_proto.SerializeToString())
    for shape in ((1, 4, 2, 5), (2, 4, 3, 6), (1, 4, 11, 13), (3, 4, 20, 7)):
        x = torch.randn(shape)
        torch.testing.assert_close(run(x), Pooling()(x))


def test_a_segmenter_that_is_not_finite_is_an_error_that_names_the_layer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, model = tmp_path / "model.safetensors", helpers.small()
    with torch.no_grad():
        next(model.decoder.parameters()).fill_(torch.nan)
    save_segmenter(weights, model, labels=helpers.CLASSES)
    assert code_of(["export", "--weights", str(weights), "--format", "onnx", str(tmp_path / "x.onnx")]) == 2
    assert "the weights decoder." in capsys.readouterr().err
    assert not (tmp_path / "x.onnx").exists()


def test_what_a_segmenter_can_not_be_exported_to_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = tmp_path / "model.safetensors"
    save_segmenter(weights, helpers.small(), labels=helpers.CLASSES)
    for form, output in (("pt2", "x.pt2"), ("hf", "x")):
        assert code_of(["export", "--weights", str(weights), "--format", form, str(tmp_path / output)]) == 2
        assert "a segmenter is exported with --format onnx" in capsys.readouterr().err
    other = semantic_fpn("resnet10t", 3, channels=16, width=64)
    save_segmenter(weights, other, labels=helpers.CLASSES)
    assert code_of(["export", "--weights", str(weights), "--format", "onnx", str(tmp_path / "x.onnx")]) == 2
    assert "a segmenter on resnet10t can't be exported" in capsys.readouterr().err
