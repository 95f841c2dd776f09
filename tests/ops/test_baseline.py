"""The baseline of the C++ kernels without torch: on this machine, and for ARM in an emulator.

Where the emulator is missing on Debian: apt-get install qemu-user g++-aarch64-linux-gnu libc6-dev-arm64-cross
"""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).parent / "baseline"
NATIVE = shlex.split(os.environ.get("CXX", "c++"))
ARM, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
# As setup.py has them, but for -O3: what compares is optimised less, as that takes longer than it runs.
OPTIONS = ["-std=c++17", f"-I{ROOT / 'csrc'}", "-Wall", "-Werror", "-Wno-unused-function"]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="compilers are called as on POSIX")]


def run(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(compiler: list[str], optimised: str, folder: Path) -> tuple[Path, str]:
    """The program, and the assembly of the baseline in it."""
    assembly, program = folder / "baseline.s", folder / "baseline"
    run(*compiler, *OPTIONS, optimised, "-S", ROOT / "csrc" / "levels" / "baseline.cpp", "-o", assembly)
    run(*compiler, *OPTIONS, "-O1", SOURCES / "main.cpp", assembly, "-o", program)
    return program, assembly.read_text()


@pytest.mark.skipif(shutil.which(NATIVE[0]) is None, reason="no C++ compiler")
def test_the_baseline_computes_what_float64_does(tmp_path):
    """For this machine, tests/ops has the kernels as they ship; here they are compiled in less than half the time."""
    program, _ = built(NATIVE, "-O1", tmp_path)
    assert run(program).endswith(" comparisons, 0 failed\n")


@pytest.mark.skipif(not (shutil.which(ARM) and shutil.which(EMULATOR)), reason=f"no {ARM} or no {EMULATOR}")
def test_on_arm_the_baseline_computes_what_float64_does(tmp_path):
    program, assembly = built([ARM, "-static"], "-O3", tmp_path)  # the emulator then needs no libraries of ARM
    assert run(EMULATOR, program).endswith(" comparisons, 0 failed\n")
    # Of four numbers each: |x - y|, the larger of two, multiply-add.
    for instruction in ("fabd", "fmax", "fmla"):
        assert re.search(rf"\t{instruction}\tv\d+\.4s, ", assembly), instruction
