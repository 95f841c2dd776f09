"""`laplacianformer eval --without-attention`: the accuracy with attention replaced, beside the ordinary one."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from laplacianformer._util.errors import InputError

if TYPE_CHECKING:
    from torch import nn

_WORDS = {"mean": "attention a mean over queries", "off": "attention off"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--without-attention",
        choices=tuple(_WORDS),
        help="also measure what attention is worth: its global branch replaced by the mean over queries, or by nothing "
        "(off); for classifiers and sequence encoders with any token mixer of the package",
    )
    parser.add_argument(
        "--layers",
        nargs="+",
        metavar="NAME",
        help="for --without-attention: the layers, such as stages.2.blocks.0, or those of a part, such as stages.2 "
        "(default: all)",
    )


def check(arguments: argparse.Namespace, task: str) -> None:
    """Refuse options that don't go together, before anything is read."""
    if arguments.layers and not arguments.without_attention:
        raise InputError("--layers says where --without-attention mean or off replaces attention: give both")
    if arguments.without_attention and task in ("detection", "segmentation"):
        from laplacianformer.weights._file import task_name

        raise InputError(
            f"--without-attention is for classifiers and sequence encoders: these weights are a {task_name(task)}'s"
        )


class Replacement:
    """What the options ask for, which may be nothing; a model that does not fit them is refused at once."""

    def __init__(self, arguments: argparse.Namespace, model: "nn.Module") -> None:
        from laplacianformer.inspect import without_attention

        self.branch = arguments.without_attention
        self.replaced = without_attention(model, self.branch, arguments.layers) if self.branch else None

    def measured(self, name: str, accuracy: Callable[[], float]) -> dict[str, dict[str, Any]]:
        """An entry for eval.json with the accuracy under this name; none if it was not asked for."""
        if self.replaced is None:
            return {}
        with self.replaced as layers:
            return {"without_attention": {"branch": self.branch, "layers": list(layers), name: accuracy()}}


def rows(label: str, name: str, found: dict[str, dict[str, Any]]) -> list[tuple[str, str]]:
    """The line of the table of results, if there is one; `label` and `name` are those of the accuracy."""
    lines = []
    for entry in found.values():
        count = len(entry["layers"])
        where = f"{_WORDS[entry['branch']]} in {count} layer{'' if count == 1 else 's'}"
        lines.append((f"{label}, {where}", f"{100 * entry[name]:.2f} %"))
    return lines
