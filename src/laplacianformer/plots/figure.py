"""What every picture is made with. Colours that colour-blind readers can tell apart."""

from pathlib import Path
from typing import Any

import numpy as np

from laplacianformer._util.errors import InputError
from laplacianformer._util.files import replacing

BLUE, LIGHT_BLUE, ORANGE, LIGHT_GREY = "#0072B2", "#9CCDEB", "#D55E00", "#CCCCCC"
Array = np.ndarray[Any, Any]


def require() -> Any:
    """matplotlib's figures, apart from pyplot and its global state. Call it before a long run that ends in one."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("pictures are drawn with matplotlib: pip install 'laplacianformer[plot]'") from None
    return Figure


def new_figure(width: float, height: float) -> Any:
    return require()(figsize=(width, height), layout="constrained")


def plain(text: str) -> str:
    """As it is: to matplotlib a pair of dollars means mathematics."""
    return text.replace("$", r"\$")


def save(figure: Any, output: Path) -> None:
    with replacing(output) as file:
        figure.savefig(file, format="png", dpi=150)
