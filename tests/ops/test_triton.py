"""The `triton` backend without a GPU: its numbers in Triton's interpreter, its kernels compiled ahead of time.

Triton decides at import whether kernels are interpreted, so the interpreted tests run in a separate process.
"""

import csv
import fcntl
import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from laplacianformer import ops
from laplacianformer.ops import _triton_support as triton_support
from laplacianformer.ops.newton_schulz import reference
from tests.ops.helpers import kernel_matrix

ROOT = Path(__file__).parents[2]
INTERPRETED = Path(__file__).parent / "interpreted"

# A hundred kernels to compile take minutes on a machine that is busy with other work.
pytestmark = pytest.mark.timeout(900)
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def run(*arguments: object, interpret: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    if interpret:
        kept["TRITON_INTERPRET"] = "1"
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=kept | environment, cwd=ROOT, capture_output=True, text=True)


@needs_triton
@pytest.mark.slow
def test_numbers_in_the_interpreter() -> None:
    """Runs all tests of tests/ops/interpreted in one process: torch and timm are imported once."""
    result = run("-m", "pytest", INTERPRETED, "-q", "-p", "no:cacheprovider", interpret=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "skipped" not in result.stdout, result.stdout


def missing_tools() -> str | None:
    """Why kernels can't be disassembled here, or None. A tool that is installed and fails is no reason."""
    if (triton := importlib.util.find_spec("triton")) is None:
        return "triton is not installed"
    if not (ROOT / "benchmarks" / "sass.py").exists():
        return "the tests run outside of a checkout"
    for tool in ("nvdisasm", "cuobjdump"):
        paths = os.environ.get(f"TRITON_{tool.upper()}_PATH"), *Path(str(triton.origin)).parent.glob(f"**/bin/{tool}*")
        if not any(path and Path(path).exists() for path in paths):
            return f"triton has no {tool}"
    return None


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """The table of benchmarks/sass.py, made once by all processes of pytest-xdist."""
    if (reason := missing_tools()) is not None:
        pytest.skip(reason)
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "sass"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "sass.csv").exists():
            result = run(ROOT / "benchmarks" / "sass.py", "--quick", "--output", folder)
            assert result.returncode == 0, result.stdout + result.stderr
    with (folder / "sass.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_kernels_compile_ahead_of_time_for_every_architecture(compiled: list[dict[str, str]]) -> None:
    parts = "kernel forward", "signs", "matmul forward", "matmul weights", "kernel weights", "newton_schulz"
    architectures = {"80", "90", "100", "120", "gfx942"}
    for part in parts:
        found = {row["architecture"] for row in compiled if row["kernel"].startswith(part)}
        assert found == architectures, part
    # Signs and newton_schulz read float32 copies of bfloat16 inputs; newton_schulz in float64 is the reference.
    for dtype, some in (("bfloat16", parts[:1] + parts[2:5]), ("float64", parts[:5])):
        for part in some:
            assert any(row["kernel"].startswith(part) and row["dtype"] == dtype for row in compiled), (part, dtype)


@needs_triton
@pytest.mark.slow
def test_every_configuration_is_compiled(compiled: list[dict[str, str]]) -> None:
    """Each tile in each configuration that autotuning may choose, on sm_90."""
    from laplacianformer.ops.laplacian_kernel import triton as kernels

    found = {(row["kernel"], int(row["warps"])) for row in compiled if row["architecture"] == "90"}
    tiles = {f"kernel forward {n} x 64": kernels.FORWARD for n in (64, 128)}
    tiles |= {f"signs (backward) {n} x {d}": kernels.SIGNS for n, d in ((64, 32), (128, 16), (128, 32))}
    tiles |= {"signs (backward) 64 x 16": kernels.SIGNS[:1]}
    assert found >= {(tile, options["num_warps"]) for tile, choices in tiles.items() for options in choices}
    assert {name for name, _ in found} >= {f"matmul forward {n} x 64 x {v}" for n in (64, 128) for v in (16, 32)}
    assert {name for name, _ in found} >= {f"newton_schulz backward {size}" for size in (16, 32, 64, 128)}


@pytest.mark.slow
def test_no_kernel_spills_registers(compiled: list[dict[str, str]]) -> None:
    assert [row for row in compiled if int(row["stack"]) > 0] == []


@pytest.mark.slow
def test_shared_memory_fits_the_smallest_gpu(compiled: list[dict[str, str]]) -> None:
    """99 KB on sm_120, 64 KB on gfx942."""
    for row in compiled:
        assert int(row["shared"]) <= (64 if row["architecture"] == "gfx942" else 99) * 1024


# Measured in float32: forward 0.75 to 0.88, backward 0.43 to 0.46 (of at most 0.5, as a sign takes three instructions),
# newton_schulz on the chip 0.54 to 0.74.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "least"),
    [
        ("kernel forward", 0.72),
        ("matmul", 0.75),
        ("signs", 0.42),
        ("newton_schulz forward", 0.5),
        ("newton_schulz back", 0.6),
    ],
)
def test_inner_loops_do_little_but_arithmetic(compiled: list[dict[str, str]], part: str, least: float) -> None:
    """In every configuration on sm_90, and in those that are compiled for sm_80."""
    rows = [row for row in compiled if row["kernel"].startswith(part) and row["architecture"] in ("80", "90")]
    rows = [row for row in rows if row["dtype"] != "float64" and row["useful"]]
    assert len(rows) >= 4
    assert [row for row in rows if float(row["useful"]) < least] == []


def test_says_why_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if importlib.util.find_spec("triton") is not None:
        assert "no GPU" in ops.backends()["triton"]
        with pytest.raises(RuntimeError, match="'triton' was asked for and can't run: there is no GPU"):
            ops.laplacian_kernel(torch.zeros(2, 3), torch.zeros(2, 3), 4.0, backend="triton")
    assert triton_support.check(torch.zeros(2)) == "it takes CUDA tensors, got one on cpu"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert ops.backends()["triton"] == "the package triton is not installed"


def test_refuses_gpus_that_are_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch._subclasses.FakeTensorMode():
        x = torch.empty(2, 3, device="cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert triton_support.check(x) == "it needs compute capability 8.0 or newer, cuda:0 is older"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert triton_support.check(x) is None


def test_is_the_automatic_choice_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch._subclasses.FakeTensorMode():
        x = torch.empty(2, 3, device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for op in ("laplacian_kernel", "laplacian_matmul", "newton_schulz", "rotate", "column_variance", "gelu"):
        table = importlib.import_module(f"laplacianformer.ops.{op}.op").BACKENDS
        assert table.name("", x) == "triton"


@needs_triton
@pytest.mark.parametrize(("value", "rows", "timed"), [("0", 128, 0), ("1", 128, 2), ("1", 64, 0)])
def test_autotuning_times_the_configurations_of_a_tile_and_can_be_switched_off(
    value: str, rows: int, timed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With LAPLACIANFORMER_AUTOTUNE=0, or with one configuration to choose from, the first runs and none is timed."""
    from laplacianformer.ops.laplacian_kernel import triton as kernels

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("LAPLACIANFORMER_AUTOTUNE", value)
    tuner = triton_support.tuned(kernels.SIGNS, key=["BLOCK_N"])(kernels._signs.fn)
    times: list[dict[str, object]] = []
    calls: list[dict[str, object]] = []
    monkeypatch.setattr(tuner, "_bench", lambda *args, **options: times.append(options) or [len(times)])
    monkeypatch.setattr(tuner, "fn", SimpleNamespace(run=lambda *args, **options: calls.append(options)))
    tuner[(1,)](BLOCK_N=rows, BLOCK_D=16)
    tuner[(1,)](BLOCK_N=rows, BLOCK_D=16)
    assert len(times) == timed
    assert len(calls) == 2
    assert all({name: call[name] for name in kernels.SIGNS[0]} == kernels.SIGNS[0] for call in calls)


def tf32(x: torch.Tensor) -> torch.Tensor:
    """Rounded to the ten bits that tensor cores read."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def tf32x3(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a_high, b_high = tf32(a), tf32(b)
    return a_high @ tf32(b - b_high) + tf32(a - a_high) @ b_high + a_high @ b_high


@pytest.mark.parametrize("m", [65, 128])
def test_three_tf32_products_keep_the_accuracy_of_float32_and_one_does_not(m: int) -> None:
    """Newton-Schulz with products as tensor cores compute them, emulated: why kernels ask for "tf32x3"."""
    w = kernel_matrix(m, 8, 4)
    exact = ops.newton_schulz(w, 6, start="identity", backend="reference")

    def error(product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> float:
        a = reference.regularised(w.float(), 1e-2)
        x = reference.first(a, "identity", 0.0)
        for _ in range(6):
            x = 2 * x - product(x, product(a, x))
        return ((x - exact).abs().max() / exact.abs().max()).item()

    single = error(torch.matmul)
    assert error(tf32x3) <= 4 * single
    assert error(lambda a, b: tf32(a) @ tf32(b)) >= 100 * single
