"""The library of C++ kernels that onnxruntime loads."""

from pathlib import Path

from laplacianformer._util.errors import InputError
from laplacianformer.ops import _cpu_extension as cpu_extension


def onnx_library() -> Path:
    """The library that computes the attention of files exported with `kernels`, for
    `SessionOptions.register_custom_ops_library`.

    It needs neither this package nor torch: a copy of the file works wherever onnxruntime does, on the same platform.
    """
    found = sorted(cpu_extension.FOLDER.glob("_onnx.*so")) + sorted(cpu_extension.FOLDER.glob("_onnx.*pyd"))
    if not found:
        raise InputError(f"there is no library for onnxruntime: {cpu_extension.not_built()}")
    return found[0]
