"""onnxruntime without its telemetry, for every module that needs it."""

import importlib
import os
from typing import Any


def import_onnxruntime(module: str = "onnxruntime") -> Any:
    """onnxruntime or one of its modules, with its telemetry off unless the user has set the variable.

    On import, onnxruntime reads the variable; otherwise it writes an identifier of this machine to the user's cache and
    connects to a host of Microsoft.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    return importlib.import_module(module)
