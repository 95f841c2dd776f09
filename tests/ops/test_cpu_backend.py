"""Choosing the `cpu` backend: what it refuses, what happens without its binary, and 64-bit addresses."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from laplacianformer import ops
from laplacianformer._util.measuring import peak_memory
from laplacianformer.ops import _cpu_extension as cpu_extension

needs_cpu = pytest.mark.skipif(ops.backends()["cpu"] is not None, reason=str(ops.backends()["cpu"]))

SETUP = Path(__file__).parents[2] / "setup.py"

WITHOUT_BINARY = """
import pathlib, torch
original = pathlib.Path.glob
pathlib.Path.glob = lambda self, pattern: iter(()) if pattern.startswith("_cpu.") else original(self, pattern)
import laplacianformer
from laplacianformer import ops
from laplacianformer._util.measuring import peak_memory
reason = ops.backends()["cpu"]
assert reason is not None and "not built" in reason, reason
x = torch.randn(5, 3)
assert ops.laplacian_kernel(x, x, 4.0).shape == (5, 5)
try:
    ops.laplacian_kernel(x, x, 4.0, backend="cpu")
except RuntimeError as error:
    assert "not built" in str(error), error
else:
    raise AssertionError("a backend that is missing ran")
"""

BROKEN_BINARY = """
import pathlib, tempfile
broken = pathlib.Path(tempfile.mkdtemp()) / "_cpu.abi3.so"
broken.write_bytes(b"not a library")
from laplacianformer.ops import _cpu_extension as cpu_extension
cpu_extension.FOLDER = broken.parent
from laplacianformer import ops
from laplacianformer._util.measuring import peak_memory
reason = ops.backends()["cpu"]
assert reason is not None and "does not load" in reason, reason
"""


@pytest.mark.parametrize("code", [WITHOUT_BINARY, BROKEN_BINARY], ids=["missing", "broken"])
@pytest.mark.slow
def test_works_without_its_binary_and_says_why(code: str, run_fresh: Callable[..., str]) -> None:
    run_fresh(f"import warnings; warnings.simplefilter('error')\n{code}")


@pytest.mark.skipif(not SETUP.exists(), reason="the tests run outside of a checkout")
@pytest.mark.skipif(os.name != "posix", reason="the compiler is chosen by CXX")
@pytest.mark.slow
def test_a_build_without_a_compiler_succeeds_and_records_why(tmp_path: Path) -> None:
    command = [sys.executable, SETUP.name, "build_ext", "--build-lib", str(tmp_path), "--build-temp", str(tmp_path)]
    environment = os.environ | {"CXX": "/nonexistent/c++"}
    result = subprocess.run(command, cwd=SETUP.parent, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    reason = "no C++ compiler, '/nonexistent/c++' is not found"
    assert result.stderr.count(reason) == 1
    assert (tmp_path / "laplacianformer" / "build_failure.txt").read_text().strip() == reason


@needs_cpu
def test_is_the_automatic_choice_on_cpus() -> None:
    x = torch.randn(300, 40)
    assert torch.equal(ops.laplacian_kernel(x, x, 4.0), ops.laplacian_kernel(x, x, 4.0, backend="cpu"))


@needs_cpu
def test_refuses_other_devices_with_the_reason() -> None:
    from laplacianformer.ops.laplacian_kernel import cpu

    x = torch.empty(3, 2, device="meta")
    assert cpu.check(x, x) == "it takes CPU tensors, got one on meta"


@needs_cpu
def test_a_level_that_the_machine_lacks_is_an_error() -> None:
    x = torch.randn(3, 2)
    lacking = set(cpu_extension.LEVELS) - set(cpu_extension.levels())
    for name in lacking:
        with cpu_extension.use_level(name), pytest.raises(RuntimeError, match=name):
            ops.laplacian_kernel(x, x, 4.0, backend="cpu")
    with cpu_extension.use_level("mmx"), pytest.raises(ValueError, match="mmx"):
        ops.laplacian_kernel(x, x, 4.0, backend="cpu")


@needs_cpu
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is read from Linux")
def test_backward_needs_bounded_memory_where_both_sides_are_long() -> None:
    inputs = [torch.randn(8192, 64, requires_grad=True) for _ in range(3)]
    out = ops.laplacian_matmul(*inputs, 4.0, backend="cpu")
    assert peak_memory(lambda: torch.autograd.grad(out.sum(), inputs)) < 110


@needs_cpu
@pytest.mark.parametrize("rows_are_far", [True, False], ids=["rows", "matrices"])
def test_addresses_beyond_31_bits(rows_are_far: bool) -> None:
    """Two rows, or two matrices, more than 2^31 elements apart, in memory that is reserved and never touched."""
    far = 2**31 + 64
    storage = torch.UntypedStorage(4 * (far + 64))
    flat = torch.empty(0).set_(storage)
    strides = (4, far, 1) if rows_are_far else (far, 4, 1)
    x = flat.as_strided((2, 2, 4), strides)
    x.copy_(torch.arange(16.0).reshape(2, 2, 4))
    y = torch.ones(2, 3, 4)
    dense = x.contiguous()
    for one, other in ((x, y), (y, x)):
        swap = (dense, y) if one is x else (y, dense)
        assert torch.equal(
            ops.laplacian_kernel(one, other, 4.0, backend="cpu"), ops.laplacian_kernel(*swap, 4.0, backend="cpu")
        )
    product = ops.laplacian_matmul(y[:, :2], x, x, 4.0, backend="cpu")
    assert torch.equal(product, ops.laplacian_matmul(y[:, :2], dense, dense, 4.0, backend="cpu"))


def attention(q, k, v):
    heads = (matrices[:, None] for matrices in (q, k, v))
    return ops.laplacian_attention(*heads, (2, 2), (1, 2), 4.0, variance="batch")[0]


@needs_cpu
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(
    ("op", "count"),
    [
        (lambda x: ops.rotate(x, torch.full((4, 2), 0.6), torch.full((4, 2), 0.8)), 1),
        (lambda x: ops.column_variance(x[:, None]), 1),
        (lambda x: ops.newton_schulz(x, 3), 1),
        (attention, 3),
    ],
    ids=["rotate", "column_variance", "newton_schulz", "laplacian_attention"],
)
def test_matrices_beyond_31_bits(op, count: int, backward: bool) -> None:
    """The other ops, forward and backward, on two matrices that lie that far apart."""
    far = 2**31 + 64
    dense = torch.rand(count, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    distant = [
        torch.empty(0).set_(torch.UntypedStorage(4 * (far + 64))).as_strided((2, 4, 4), (far, 4, 1)).copy_(matrices)
        for matrices in dense
    ]
    outputs = []
    for inputs in (dense.unbind(), distant):
        inputs = [matrices.requires_grad_(backward) for matrices in inputs]
        with ops.use_backend("cpu"):
            out = op(*inputs)
            outputs.append(torch.autograd.grad(out.square().sum(), inputs) if backward else [out.detach()])
    assert all(torch.equal(near, found) for near, found in zip(*outputs, strict=True))
