"""What a weights file says about itself, for people."""

from typing import Any

from laplacianformer._util import limits
from laplacianformer._util.tensor_files import json_entry
from laplacianformer.weights._file import Weights

_MOST_SHOWN = 1_000  # characters


def describe(loaded: Weights) -> str:
    """What the weights are, in a few lines: size, data, accuracy, limits."""
    millions = sum(parameter.numel() for parameter in loaded.model.parameters()) / 1e6
    _, height, width = loaded.input["size"]
    names = f": {_shown(', '.join(loaded.classes))}" if len(loaded.classes) <= 20 else ""
    lines = [
        f"{loaded.metadata['architecture']}, {millions:.1f} M parameters, for images of {height} x {width} pixels",
        _shown(loaded.metadata.get("description", "")),
        _shown(", ".join(f"{key.replace('_', ' ')} {percent(key, value)}" for key, value in metrics(loaded).items())),
        f"Not shown, as they are no finite numbers: {_shown(', '.join(strange))}"
        if (strange := not_finite(loaded))
        else "",
        f"It knows {len(loaded.classes)} classes{names}. An image of anything else is assigned to one of them.",
    ]
    return "\n".join(line for line in lines if line)


def origin(loaded: Weights) -> str:
    """Where weights come from, in one line: data, accuracy, commit."""
    said, measured = loaded.metadata, metrics(loaded).get("accuracy")
    accuracy = "unknown" if measured is None else percent("accuracy", measured)
    return (
        f"{loaded.path.name}: {said['architecture']} trained on {_shown(said.get('data', 'unknown data'))}, "
        f"accuracy {accuracy}, commit {said.get('commit', 'unknown')[:12]}"
    )


def _shown(text: str) -> str:
    """As much of it as fits into a few lines."""
    return text if len(text) <= _MOST_SHOWN else limits.one_line(text, _MOST_SHOWN)


def metrics(loaded: Weights) -> dict[str, float]:
    """The numbers that were measured when the weights were written, as far as they are finite."""
    return {key: value for key, value in measured_entries(loaded).items() if limits.finite(value)}


def not_finite(loaded: Weights) -> list[str]:
    """Names of metrics that are infinite, NaN or larger than any float."""
    found = measured_entries(loaded).items()
    return [key for key, value in found if type(value) in (int, float) and not limits.finite(value)]


def measured_entries(loaded: Weights) -> dict[str, Any]:
    """Whatever the file has as its metrics."""
    found = json_entry(loaded.path, loaded.metadata, "metrics") if "metrics" in loaded.metadata else {}
    return found if isinstance(found, dict) else {}


def percent(key: str, value: float) -> str:
    """A number of the metrics, for people."""
    return f"{100 * value:.1f} %" if "accuracy" in key or "top" in key else f"{value:.4g}"
