"""What the values in label maps mean: names and colours of the classes, and which values don't count.

A label map is an image of one channel. In memory, and in what this package writes, its values are indices of classes,
and IGNORED where nothing is known; in files they may be others, which a YAML file states:

    ignore: 255                                   a value, or a list; none without it
    classes:
      - sky                                       a name alone: its value is its index
      - {name: road, value: 7, colour: [128, 64, 128]}
"""

import colorsys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from laplacianformer._util import limits
from laplacianformer._util.errors import InputError

IGNORED = 255
MOST_CLASSES = 255
_MOST_VALUE = 65535  # of 16 bits
_UNKNOWN = -1
_SHOWN = 5  # values that an error names
_KEYS = {"name", "value", "colour"}

Array = np.ndarray[Any, Any]
Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Labels:
    """The classes of label maps by index, with the values that stand for them in files."""

    names: tuple[str, ...]
    values: tuple[int, ...]
    colours: tuple[Colour, ...]
    ignore: tuple[int, ...] = ()

    def indices(self, values_hw: Array) -> Array:
        """The values of a file as indices of classes and IGNORED, in uint8; an InputError names what is neither."""
        table = np.full(_MOST_VALUE + 1, _UNKNOWN, dtype=np.int16)
        table[list(self.ignore)] = IGNORED
        table[list(self.values)] = range(len(self.values))
        found: Array = table[values_hw]
        if (found == _UNKNOWN).any():
            unknown = np.unique(values_hw[found == _UNKNOWN]).tolist()
            more = ", ..." if len(unknown) > _SHOWN else ""
            raise InputError(
                f"has the values {', '.join(map(str, unknown[:_SHOWN]))}{more} in its label map, which are neither "
                f"classes ({_ranges(self.values)}) nor ignored ({_ranges(self.ignore) or 'none'})"
            )
        return found.astype(np.uint8)

    def tree(self) -> dict[str, Any]:
        """As in a YAML file, complete."""
        classes = zip(self.names, self.values, self.colours, strict=True)
        entries = [{"name": name, "value": value, "colour": list(colour)} for name, value, colour in classes]
        return {"ignore": list(self.ignore), "classes": entries}


def labels_of(tree: Any, what: str) -> Labels:
    """The contents of a YAML file, checked; `what` names it in messages."""
    if not isinstance(tree, Mapping) or not tree.keys() <= {"classes", "ignore"} or "classes" not in tree:
        raise InputError(f"{what}: expected the keys classes and ignore, got {limits.shown(tree)}")
    classes = tree["classes"]
    if not isinstance(classes, list | tuple) or not 1 <= len(classes) <= MOST_CLASSES:
        raise InputError(f"{what}: expected a list of 1 to {MOST_CLASSES} classes, got {limits.shown(classes)}")
    colours = default_colours(len(classes))
    entries = [_entry(entry, index, colours[index], what) for index, entry in enumerate(classes)]
    names, values, found = (tuple(part) for part in zip(*entries, strict=True))
    ignore = tree.get("ignore")
    ignored = tuple(ignore) if isinstance(ignore, list | tuple) else () if ignore is None else (ignore,)
    wrong = [value for value in (*values, *ignored) if not _is_value(value)]
    if wrong:
        raise InputError(f"{what}: the value {limits.shown(wrong[0])} is not a whole number from 0 to {_MOST_VALUE}")
    for kind, given in (("name", names), ("value", (*values, *ignored))):
        twice = next((each for each in given if given.count(each) > 1), None)
        if twice is not None:
            raise InputError(f"{what}: the {kind} {limits.shown(twice)} appears twice")
    return Labels(names, values, found, ignored)


def read_labels(path: Path) -> Labels:
    """The label map of a YAML file."""
    from laplacianformer.training._recipes import read_yaml  # needs pydantic

    return labels_of(read_yaml(path), str(path))


def default_colours(count: int) -> list[Colour]:
    """Colours that differ in hue, lightness and saturation."""
    colours = []
    for index in range(count):
        hue = index * 0.618034 % 1  # the golden ratio: each new hue is far from those before
        parts = colorsys.hls_to_rgb(hue, (0.5, 0.35, 0.7)[index % 3], (0.9, 0.6)[index // 3 % 2])
        red, green, blue = (round(255 * part) for part in parts)
        colours.append((red, green, blue))
    return colours


def _entry(entry: Any, index: int, colour: Colour, what: str) -> tuple[str, Any, Colour]:
    """Name, value and colour of a class."""
    if isinstance(entry, str):
        return entry, index, colour
    if not isinstance(entry, Mapping) or not entry.keys() <= _KEYS or not isinstance(entry.get("name"), str):
        raise InputError(f"{what}: class {index} is {limits.shown(entry)}: expected a name, or name, value and colour")
    given = entry.get("colour", colour)
    parts = tuple(given) if isinstance(given, list | tuple) else ()
    if len(parts) != 3 or not all(_is_value(part) and part <= 255 for part in parts):
        raise InputError(
            f"{what}: the colour of {limits.shown(entry['name'])} is {limits.shown(given)}: expected three numbers "
            "from 0 to 255"
        )
    red, green, blue = parts
    return entry["name"], entry.get("value", index), (red, green, blue)


def _is_value(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_VALUE


def _ranges(values: tuple[int, ...]) -> str:
    """0 to 10, 12: neighbours together."""
    parts: list[list[int]] = []
    for value in sorted(values):
        if parts and value == parts[-1][-1] + 1:
            parts[-1].append(value)
        else:
            parts.append([value])
    return ", ".join(f"{part[0]} to {part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
