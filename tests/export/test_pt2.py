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


# The commands, one per line, in one process: importing and starting the compiler takes as long as a small graph does.
EXPORT = """
import sys
from laplacianformer.cli import main

for line in sys.stdin.read().splitlines():
    main(["export", *line.split("\\t")])
"""
X86 = platform.machine() in ("x86_64", "AMD64")
LOWER = "bfloat16", "int8"
pytestmark = pytest.mark.timeout(900)  # the packages of all tests are compiled in a minute on an idle core
needs_compiler = pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler")


def python(*arguments, given=""):
    # Compiled without optimisation where that changes no number: the code around the kernels.
    environment = os.environ | {"AOTI_RUNTIME_CHECK_INPUTS": "1", "AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL": "O0"}
    done = subprocess.run([sys.executable, *arguments], env=environment, input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder with the weights, a package for every size, and one for each lower precision."""
    folder = tmp_path_factory.mktemp("pt2")
    weights = save_one_stage(folder / "model.safetensors")
    for number, name in enumerate(CLASSES):
        (folder / "data" / name).mkdir(parents=True)
        picture(number).save(folder / "data" / name / "0.png")
    common = ["--weights", str(weights), "--format", "pt2"]
    commands = [[*common, str(folder / "model.pt2")]]
    for precision in LOWER if X86 else ():
        options = ["--size", "32", "32", "--precision", precision, "--data", str(folder / "data")]
        commands.append([*common, *options, str(folder / f"{precision}.pt2")])
    # Not in this process: pytest keeps what the compiler logs, which takes as long as compiling.
    printed = python("-c", EXPORT, given="\n".join("\t".join(command) for command in commands))
    assert printed.count("largest difference") == len(commands)
    assert printed.count("top-1 of the export") == len(commands) - 1
    return folder


@needs_compiler
@pytest.mark.slow
def test_torch_alone_runs_it_at_every_size(exported):
    # Up to 14 pixels there are as many landmarks as tokens, and nothing is solved.
    inputs = [images(height, width, batch=batch) for height, width, batch in ((32, 32, 1), (14, 14, 3), (9, 150, 2))]
    torch.save(inputs, exported / "inputs.pt")
    files = [str(exported / name) for name in ("model.pt2", "inputs.pt", "outputs.pt")]
    classes, four_channels = python("-I", "-c", ALONE, *files).splitlines()
    assert json.loads(classes) == list(CLASSES)
    assert four_channels == "rejected"
    model = load_weights(exported / "model.safetensors").model
    with torch.inference_mode():
        for x, found in zip(inputs, torch.load(files[2]), strict=True):
            torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-4)


@needs_compiler
@pytest.mark.skipif(not X86, reason="8 bits are for x86 CPUs")
@pytest.mark.slow
@pytest.mark.parametrize("precision", LOWER)
def test_lower_precisions_are_compiled_and_near(exported, precision):
    package = torch._inductor.aoti_load_package(str(exported / f"{precision}.pt2"))
    model = load_weights(exported / "model.safetensors").model
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
