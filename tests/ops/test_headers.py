"""The C++ sources: each header compiles by itself, and the linker cannot merge the code of two instruction sets."""

import os
import platform
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from torch.utils.cpp_extension import include_paths

CSRC = Path(__file__).parents[2] / "csrc"
COMPILER = shlex.split(os.environ.get("CXX", "c++"))
# As setup.py has them. Kernels need none of torch, so they are given none of it.
OPTIONS = ["-std=c++17", "-fvisibility=hidden", f"-I{CSRC}"]
TORCH = ["-DTORCH_TARGET_VERSION=0x020a000000000000", *(f"-isystem{path}" for path in include_paths())]
HEADERS = sorted(path.relative_to(CSRC).as_posix() for path in CSRC.glob("*/*.h"))
# The library for onnxruntime: its own files. Those of ops/ in it include its stand-in for torch.
STAND_IN = [f"-I{CSRC / 'onnx' / 'stand_in'}"]
ONNX = sorted(path.relative_to(CSRC).as_posix() for path in CSRC.glob("onnx/*.cpp"))
LEVELS = ["baseline", "avx2", "avx512"] if platform.machine() == "x86_64" else ["baseline"]

pytestmark = pytest.mark.skipif(os.name != "posix" or shutil.which(COMPILER[0]) is None, reason="no C++ compiler")


def compiled(*arguments: object) -> None:
    done = subprocess.run([*COMPILER, *OPTIONS, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("header", HEADERS)
def test_a_header_includes_what_it_uses(header, tmp_path):
    source = tmp_path / "alone.cpp"
    source.write_text(f'#include "{header}"\n')
    others = TORCH if header.startswith("ops/") else STAND_IN if header.startswith("onnx/") else []
    compiled("-fsyntax-only", "-Wall", "-Wno-unused-function", "-Werror", *others, source)


@pytest.mark.slow
@pytest.mark.parametrize("source", ONNX)
def test_the_library_for_onnxruntime_compiles_without_torch(source):
    compiled("-fsyntax-only", "-Wall", "-Werror", *STAND_IN, CSRC / source)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm to list symbols")
@pytest.mark.parametrize("level", LEVELS)
def test_the_linker_cannot_merge_code_of_instruction_sets(level, tmp_path):
    """Without optimisation nothing is inlined away, so that every function that could be merged shows."""
    compiled("-O0", "-c", CSRC / "levels" / f"{level}.cpp", "-o", tmp_path / "level.o")
    symbols = subprocess.run(["nm", "-C", tmp_path / "level.o"], capture_output=True, text=True, check=True).stdout
    weak = [line.split(maxsplit=2)[2] for line in symbols.splitlines() if line.split(maxsplit=2)[1:2] in (["W"], ["V"])]
    # levels/tasks.h comes before the target is set: its functions are compiled for the baseline everywhere.
    tasks = ("laplacianformer::CellRange::", "laplacianformer::Grid::", "laplacianformer::PairTask::")
    assert [symbol for symbol in weak if not symbol.startswith(tasks)] == []
