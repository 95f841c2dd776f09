"""A model as a compiled package of AOTInductor (.pt2), which needs only torch, in Python and in C++."""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from laplacianformer._util.errors import InputError
from laplacianformer.export._trace import ExportPrecision, check_operators, trace
from laplacianformer.ops.newton_schulz import reference as newton_schulz

NAME = "model.pt2"
# With AOTI_RUNTIME_CHECK_INPUTS=1, packages check their inputs. They would reject a batch of one, which works.
LEAST_LENGTHS = "aot_inductor.check_lowerbound"


def to_pt2(
    model: nn.Module,
    metadata: Mapping[str, str],
    size: tuple[int, int] | None = None,
    precision: ExportPrecision = "float32",
) -> bytes:
    """The bytes of the package, for CPUs like this one, and for images of any size or of this height and width alone.

    precision: of linear layers and convolutions; for "int8", the model is one of `to_int8`.

    Its loader's `get_metadata()` returns the metadata.
    """
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise InputError(f"a .pt2 package needs a C++ compiler, and {compiler!r} is not found: install g++ or set CXX")
    program = trace(model, size, autocast=precision == "bfloat16")
    check_operators(program, PLAIN)
    # The number of threads is that of the process that runs it, not of this one.
    options: dict[str, Any] = {"aot_inductor.metadata": dict(metadata), "cpp.dynamic_threads": True}
    if LEAST_LENGTHS in torch._inductor.list_options():  # not in the oldest torch that we support
        options[LEAST_LENGTHS] = False
    if precision != "float32":
        options["freezing"] = True  # weights are converted and packed once, here
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = torch._inductor.aoti_compile_and_package(
            program.run_decompositions(PLAIN), package_path=str(Path(folder) / NAME), inductor_configs=options
        )
        return Path(path).read_bytes()


def pt2_runner(file: bytes) -> Callable[[Tensor], Tensor]:
    """The package as a function of tensors."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / NAME
        path.write_bytes(file)
        return torch._inductor.aoti_load_package(str(path))


# ---- this package's operators in terms of PyTorch's; arguments as in ops/*/op.py ----


def _kernel(x: Tensor, y: Tensor, cos: Any, sin: Any, scale: float, backend: str) -> Tensor:
    """The compiler fuses this into one loop: the differences are never stored."""
    return ((x[..., :, None, :] - y[..., None, :, :]).abs().sum(-1) / -scale).exp()


def _matmul(x: Tensor, y: Tensor, values: Tensor, cos: Any, sin: Any, scale: float, backend: str) -> Tensor:
    return _kernel(x, y, cos, sin, scale, backend) @ values


def _newton_schulz(w: Tensor, iterations: int, eps: float, start: str, gradient: str, backend: str) -> Tensor:
    return newton_schulz.forward(w, iterations, eps, start)


PLAIN: dict[Any, Callable[..., Any]] = {
    torch.ops.laplacianformer.laplacian_kernel.default: _kernel,
    torch.ops.laplacianformer.laplacian_matmul.default: _matmul,
    torch.ops.laplacianformer.newton_schulz.default: _newton_schulz,
}
