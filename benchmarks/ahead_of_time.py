"""Triton as a compiler, with no GPU. Import it before Triton and kernels: it settles how they are compiled."""

import os
import tempfile
from typing import Any

# Kernels are compiled, not interpreted, into a cache of their own, and no GPU is looked for.
os.environ.pop("TRITON_INTERPRET", None)
os.environ["CUDA_VISIBLE_DEVICES"] = ""
_CACHE = tempfile.TemporaryDirectory()
os.environ["TRITON_CACHE_DIR"] = _CACHE.name


def compiled(architecture: str, options: dict[str, Any], **source: Any) -> Any:
    """A kernel for an architecture, "90" or "gfx942". `source`: fn, signature, constexprs and attrs of Triton's."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    amd = architecture.startswith("gfx")
    target = GPUTarget("hip", architecture, 64) if amd else GPUTarget("cuda", int(architecture), 32)
    return triton.compile(ASTSource(**source), target=target, options=options)
