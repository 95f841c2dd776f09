"""`laplacianformer export --format onnx`: one file for every size, and an example that needs only the file."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

onnx = pytest.importorskip("onnx", reason="install laplacianformer[export]")
pytest.importorskip("onnxscript", reason="install laplacianformer[export]")
onnxruntime = pytest.importorskip("onnxruntime", reason="install laplacianformer[export]")

from laplacianformer.cli import main  # noqa: E402
from laplacianformer.export._check import differences  # noqa: E402
from laplacianformer.export._exported import tolerance  # noqa: E402
from laplacianformer.export._int8 import quantised  # noqa: E402
from laplacianformer.export._onnx_model import onnx_runner  # noqa: E402
from laplacianformer.weights import load_weights  # noqa: E402
from tests.export.helpers import save_one_stage  # noqa: E402
from tests.helpers import CLASSES, INPUT, picture  # noqa: E402
from tests.model.helpers import images  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "classify_onnx.py"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Weights and the ONNX file that the command made of them."""
    folder = tmp_path_factory.mktemp("onnx")
    weights = save_one_stage(folder / "model.safetensors", qk_norm=True)  # test_pt2.py has one without
    output = folder / "new" / "model.onnx"
    main(["export", "--weights", str(weights), "--format", "onnx", str(output)])
    return weights, output


@pytest.mark.slow
def test_one_file_computes_what_the_model_computes_at_every_size(exported):
    weights, output = exported
    model, run = load_weights(weights).model, onnx_runner(output.read_bytes())
    # Up to 14 pixels there are as many landmarks as tokens, and nothing is solved.
    for height, width in ((32, 32), (14, 14), (13, 40), (3, 3), (33, 47), (9, 150)):
        x = images(height, width, batch=1 + height % 3)
        with torch.inference_mode():
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_file_says_what_it_is(exported):
    session = onnxruntime.InferenceSession(exported[1], providers=["CPUExecutionProvider"])
    said = session.get_modelmeta().custom_metadata_map
    assert json.loads(said["classes"]) == list(CLASSES)
    assert json.loads(said["input"]) == INPUT
    assert session.get_inputs()[0].shape == ["batch", 3, "height", "width"]
    assert session.get_outputs()[0].shape == ["batch", len(CLASSES)]
    assert b"/src/" not in exported[1].read_bytes()  # nor where it was made


@pytest.mark.slow
def test_int8_holds_the_linear_layers_and_is_near(exported):
    weights, output = exported
    small, model = quantised(output.read_bytes()), load_weights(weights).model
    tensors = onnx.load_from_string(small).graph.initializer
    int8 = [each for each in tensors if each.data_type == onnx.TensorProto.INT8 and len(each.dims) == 2]
    linear = [layer.weight.numel() for layer in model.stages.modules() if isinstance(layer, torch.nn.Linear)]
    assert sorted(math.prod(each.dims) for each in int8) == sorted(linear)
    session = onnxruntime.InferenceSession(small, providers=["CPUExecutionProvider"])
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == list(CLASSES)
    measured = [difference.relative for difference in differences(load_weights(weights), onnx_runner(small))]
    assert len(measured) == 3
    assert 1e-5 < max(measured) < tolerance("int8")


@pytest.mark.slow
def test_the_example_predicts_as_the_package_does_without_it(exported, tmp_path, capsys):
    weights, output = exported
    path = tmp_path / "wide.png"
    picture(3, (90, 61)).save(path)
    main(["predict", "--weights", str(weights), "--json", "--top", "5", str(path)])
    ranking = json.loads(capsys.readouterr().out)["predictions"][0]["classes"]
    alone = f"import runpy, sys; sys.argv[1:] = {[str(output), str(path)]!r}; "
    alone += f"runpy.run_path({str(EXAMPLE)!r}, run_name='__main__'); "
    alone += "assert not {'torch', 'laplacianformer'} & sys.modules.keys()"
    lines = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True, check=True).stdout.split("\n")
    found = [(line.split()[1], float(line.split()[0])) for line in lines if line]
    assert [name for name, _ in found] == [entry["class"] for entry in ranking]
    assert [share for _, share in found] == pytest.approx([entry["probability"] for entry in ranking], abs=1e-3)
