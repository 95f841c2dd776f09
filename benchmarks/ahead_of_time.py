"""Triton as a compiler, without a GPU. Import this before Triton and the kernels: it sets how they are compiled."""

import os
import tempfile
from typing import Any

# Kernels are compiled, not interpreted, into a separate cache, and without looking for a GPU.
os.environ.pop("TRITON_INTERPRET", None)
os.environ["CUDA_VISIBLE_DEVICES"] = ""
_CACHE = tempfile.TemporaryDirectory()
os.environ["TRITON_CACHE_DIR"] = _CACHE.name


def compiled(architecture: str, options: dict[str, Any], **source: Any) -> Any:
    """A kernel for an architecture, such as "90" or "gfx942". `source`: the arguments of Triton's ASTSource."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    amd = architecture.startswith("gfx")
    target = GPUTarget("hip", architecture, 64) if amd else GPUTarget("cuda", int(architecture), 32)
    return triton.compile(ASTSource(**source), target=target, options=options)
