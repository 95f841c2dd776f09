"""How the plots look: at half a page, for all readers, in print too."""

from typing import Any

# Okabe and Ito's colours, with a marker and a dash each, so that none is told by colour alone.
STYLES: list[dict[str, Any]] = [
    {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    {"color": "#009E73", "marker": "^", "linestyle": "-."},
    {"color": "#CC79A7", "marker": "D", "linestyle": ":"},
    {"color": "#E69F00", "marker": "v", "linestyle": (0, (5, 1))},
    {"color": "#56B4E9", "marker": "P", "linestyle": (0, (3, 1, 1, 1))},
]


def tidy(axis: Any, *, x: str, y: str) -> None:
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.grid(color="#DDDDDD", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
