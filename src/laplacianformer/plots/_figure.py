"""How every figure is made, and colours that colour-blind readers can tell apart."""

from pathlib import Path
from typing import Any

import numpy as np

from laplacianformer._util.errors import InputError
from laplacianformer._util.files import replacing
from laplacianformer._util.text import printable

BLUE, LIGHT_BLUE, ORANGE, LIGHT_GREY = "#0072B2", "#9CCDEB", "#D55E00", "#CCCCCC"
Array = np.ndarray[Any, Any]


def require_matplotlib() -> Any:
    """matplotlib's Figure, without pyplot and its global state. Call it before a long run that ends in a figure."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("figures are drawn with matplotlib: pip install 'laplacianformer[plot]'") from None
    return Figure


def new_figure(width: float, height: float) -> Any:
    return require_matplotlib()(figsize=(width, height), layout="constrained")


def escaped(text: str) -> str:
    """Text that matplotlib draws as it is: to it, a pair of dollar signs encloses mathematics. It has no control
    characters."""
    return printable(text, keep="\n").replace("$", r"\$")


def save(figure: Any, output: Path) -> None:
    """As PNG, whole or not at all."""
    with replacing(output) as file:
        figure.savefig(file, format="png", dpi=150)
