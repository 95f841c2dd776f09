"""Which of the two Laplacian layers takes given options."""

from collections.abc import Mapping
from typing import Any

from laplacianformer.attention.ablation import AblationAttention
from laplacianformer.attention.laplacian import LaplacianAttention

# The options that `LaplacianAttention` does not take.
_DEFAULTS = {
    "kernel": "laplacian",
    "gram": "keys",
    "solver": "newton_schulz",
    "start": None,
    "gradient": "exact",
    "ratio": None,
    "landmarks": "pool",
    "tied": False,
    "relative_eps": None,
    "normalised_values": False,
}


def laplacian_layer(options: Mapping[str, Any]) -> tuple[type[LaplacianAttention], dict[str, Any]]:
    """The layer that takes these options of `attention="laplacian"`, and its options.

    In older weights files one layer had them all: where one of the comparisons is among them, it is
    `AblationAttention` now, and `sync=True` is `whitening="synced"`.
    """
    options = dict(options)
    if options.pop("sync", False) and options.get("whitening", "running") == "running":
        options["whitening"] = "synced"
    options = {name: value for name, value in options.items() if name not in _DEFAULTS or value != _DEFAULTS[name]}
    return AblationAttention if needs_ablation(options) else LaplacianAttention, options


def needs_ablation(options: Mapping[str, Any]) -> bool:
    """Whether only `AblationAttention` takes these options."""
    exact = "grid" in options and options["grid"] is None
    return bool(_DEFAULTS.keys() & options.keys()) or options.get("whitening") in ("instance", "full") or exact
