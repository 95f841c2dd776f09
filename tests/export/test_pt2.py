"""`laplacianformer export --format pt2`: a compiled package that torch runs without this one."""

import json
import os
import platform
import shutil
import subprocess
import sys

import pytest
import torch

from laplacianformer.export._exported import tolerance
from laplacianformer.export._trace import trace
from laplacianformer.weights import load_weights
from tests.export.helpers import code_of, save_one_stage
from tests.helpers import CLASSES, picture
from tests.model.helpers import images

ALONE = """
import json, sys
sys.modules["laplacianformer"] = None  # can't be imported
import torch
model = torch._inductor.aoti_load_package(sys.argv[1])
with torch.inference_mode():
    torch.save([model(x) for x in torch.load(sys.argv[2])], sys.argv[3])
print(model.get_metadata()["classes"])
try:
    model(torch.zeros(1, 4, 32, 32))
except RuntimeError:
    print("rejected")
"""


def python(*arguments):
    # Compiled without optimisation where that changes no number: the code around the kernels.
    environment = os.environ | {"AOTI_RUNTIME_CHECK_INPUTS": "1", "AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL": "O0"}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(600)  # a minute on an idle core
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler")
@pytest.mark.slow
def test_torch_alone_runs_it_at_every_size(tmp_path):
    weights, output = save_one_stage(tmp_path / "model.safetensors"), tmp_path / "model.pt2"
    # Not in this process: pytest keeps what the compiler logs, which takes as long as compiling.
    export = ["-m", "laplacianformer", "export", "--weights", str(weights), "--format", "pt2", str(output)]
    assert "largest difference" in python(*export)
    # Up to 14 pixels there are as many landmarks as tokens, and nothing is solved.
    inputs = [images(height, width, batch=batch) for height, width, batch in ((32, 32, 1), (14, 14, 3), (9, 150, 2))]
    torch.save(inputs, tmp_path / "inputs.pt")
    files = [str(tmp_path / name) for name in ("model.pt2", "inputs.pt", "outputs.pt")]
    classes, four_channels = python("-I", "-c", ALONE, *files).splitlines()
    assert json.loads(classes) == list(CLASSES)
    assert four_channels == "rejected"
    model = load_weights(weights).model
    with torch.inference_mode():
        for x, found in zip(inputs, torch.load(files[2]), strict=True):
            torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler")
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="8 bits are for x86 CPUs")
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_lower_precisions_are_compiled_and_near(tmp_path, precision):
    weights, output = save_one_stage(tmp_path / "model.safetensors"), tmp_path / "model.pt2"
    for number, name in enumerate(CLASSES):
        (tmp_path / "data" / name).mkdir(parents=True)
        picture(number).save(tmp_path / "data" / name / "0.png")
    options = ["--size", "32", "32", "--precision", precision, "--data", str(tmp_path / "data")]
    export = ["-m", "laplacianformer", "export", "--weights", str(weights), "--format", "pt2", *options, str(output)]
    assert "top-1 of the export" in python(*export)
    package, model = torch._inductor.aoti_load_package(str(output)), load_weights(weights).model
    with torch.inference_mode():
        for batch in (1, 5):
            x = images(32, 32, batch=batch)
            found, expected = package(x), model(x)
            assert found.dtype == torch.float32
            assert 1e-4 < (found - expected).abs().max() / expected.abs().max() < tolerance(precision)


@pytest.mark.slow
def test_a_graph_of_one_size_has_constants_for_it_and_any_batch(tmp_path):
    model = load_weights(save_one_stage(tmp_path / "model.safetensors")).model
    program = trace(model, (24, 40))
    (shape,) = [node.meta["val"].shape for node in program.graph.nodes if node.name == "images"]
    assert shape[2:] == (24, 40)
    assert isinstance(shape[0], torch.SymInt)
    with torch.inference_mode():
        for batch in (1, 5):
            x = images(24, 40, batch=batch)
            torch.testing.assert_close(program.module()(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_missing_compiler_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CXX", "no-such-compiler")
    weights = save_one_stage(tmp_path / "model.safetensors")
    assert code_of(["export", "--weights", str(weights), "--format", "pt2", str(tmp_path / "model.pt2")]) == 2
    assert "'no-such-compiler' is not found" in capsys.readouterr().err
