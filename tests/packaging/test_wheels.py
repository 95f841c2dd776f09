"""The wheels and the source distribution: a wheel installs beside torch and the other dependencies, and predicts."""

import email
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from laplacianformer.cli import main
from tests.helpers import picture

ROOT = Path(__file__).parents[2]
BINARIES = ("laplacianformer/_cpu.abi3.so", "laplacianformer/_onnx.abi3.so")
SOURCES = ("src", "csrc", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
LINUX = platform.system() == "Linux" and platform.machine() == "x86_64"
COMPILER = shutil.which(os.environ.get("CXX", "c++"))
pytestmark = pytest.mark.slow
# Runs the command that was installed, and says where its package is and which backends it has: torch is imported once.
LOOK = """
import json, runpy, sys
del sys.argv[0]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as ended:
    assert not ended.code, ended.code
import laplacianformer
print(json.dumps([laplacianformer.__file__, laplacianformer.ops.backends()]))
"""
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def run(command, cwd, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def sources(tmp_path):
    """A copy: builds leave files beside what they build."""
    folder = tmp_path / "sources"
    folder.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            unwanted = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
        else:
            shutil.copy2(ROOT / name, folder)
    return folder


def give_built_kernels(sources):
    """What was built for this environment, if it is there. It is built again where it is older than its sources."""
    for binary in BINARIES:
        built = ROOT / "src" / binary
        if built.exists():
            output = sources / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}" / binary
            output.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(built, output)


def build(sources, output, kernels, **variables):
    """As `pip wheel` does, which starts Python and imports torch for every question that it asks a build."""
    output.mkdir()
    run([sys.executable, "-c", BUILD, output], sources, LAPLACIANFORMER_KERNELS=kernels, **variables)
    (wheel,) = output.glob("*.whl")
    return wheel


def check_predictions(wheel, folder, capsys):
    """The installed package predicts what this one does, with its own weights. Returns what its backends say."""
    environment, path = folder / "environment", folder / "picture.png"
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    run([sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel], folder)
    # Packages that are there already, without what makes editable ones importable.
    packages = sysconfig.get_path("purelib", vars={"base": str(environment)})
    Path(packages, "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    picture(1).save(path)
    main(["predict", "--json", str(path)])
    expected = json.loads(capsys.readouterr().out)["predictions"][0]["classes"]
    installed = environment / "bin" / "laplacianformer"
    said = run([python, "-c", LOOK, installed, "predict", "--json", path], folder)
    *answer, last = said.strip().splitlines()
    found, (file, backends) = json.loads("\n".join(answer)), json.loads(last)
    for entry, other in zip(found["predictions"][0]["classes"], expected, strict=True):
        assert entry["class"] == other["class"]
        assert entry["probability"] == pytest.approx(other["probability"], abs=1e-4)
    assert Path(file).is_relative_to(packages)
    return backends


def test_the_wheel_of_python_alone_predicts_anywhere(sources, tmp_path, capsys):
    wheel = build(sources, tmp_path / "dist", "0")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        (described,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        said = email.message_from_bytes(opened.read(described))
    assert {"laplacianformer/recipes/digits.yaml", "laplacianformer/py.typed"} <= set(names)
    assert not [name for name in names if name.endswith(".so")]
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
    assert (said["License-Expression"], said["Description-Content-Type"]) == ("Apache-2.0", "text/markdown")
    assert said.get_payload().startswith("# LaplacianFormer")
    assert "not built" in check_predictions(wheel, tmp_path, capsys)["cpu"]


@pytest.mark.skipif(not (LINUX and COMPILER), reason="builds C++ for Linux on x86-64")
def test_one_wheel_with_the_kernels_serves_every_python(sources, tmp_path, capsys):
    give_built_kernels(sources)
    wheel = build(sources, tmp_path / "dist", "1")
    assert wheel.name.endswith("-cp310-abi3-linux_x86_64.whl")
    with zipfile.ZipFile(wheel) as opened:
        assert set(BINARIES) <= set(opened.namelist())
    assert check_predictions(wheel, tmp_path, capsys)["cpu"] is None


def test_a_build_that_must_have_the_kernels_fails_without_a_compiler(sources, tmp_path):
    with pytest.raises(AssertionError, match="'no-such-compiler' is not found"):
        build(sources, tmp_path / "dist", "1", CXX="no-such-compiler")


def test_the_source_distribution_has_what_a_build_needs(sources):
    run([sys.executable, "-c", "from setuptools import build_meta; build_meta.build_sdist('dist')"], sources)
    (archive,) = (sources / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.split("/", 1)[-1] for name in opened.getnames()}
    expected = {path.relative_to(ROOT).as_posix() for path in (ROOT / "csrc").rglob("*")}
    expected |= {"setup.py", "pyproject.toml", "LICENSE", "README.md", "src/laplacianformer/recipes/digits.yaml"}
    assert expected <= names
