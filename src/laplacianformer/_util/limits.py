"""What is refused for its size alone, in files that may come from anyone: docs/limits.md has the same numbers."""

import json
import math
import os
from collections.abc import Iterator
from typing import Any

from laplacianformer._util.errors import InputError

# ---- weights files ----
MOST_PARAMETERS = 4_000_000_000  # numbers in all tensors of a file
MOST_TENSORS = 100_000
MOST_ENTRIES = 1_000  # of the metadata
MOST_JSON = 8_000_000  # characters of one entry that is JSON
MOST_TEXT = 100_000  # characters of any other entry, and of a name
MOST_ARGUMENTS = 1_000  # values in the arguments of a model
LARGEST_ARGUMENT = 100_000  # any number among them: widths, classes
DEEPEST = 1_000  # those that say how often something is repeated: depths, layers, iterations
MOST_SIDE = 8_192  # pixels of a side of the input, also before it is cropped; arguments that say a size
MOST_BUFFERED = 100_000_000  # numbers in the buffers of a model, which a file may not hold and its arguments ask for
STD_RANGE = (1e-6, 1e6)  # of each channel
MOST_MEAN = 1e6  # in absolute value

# ---- recipes ----
MOST_RECIPE_BYTES = 1_000_000
MOST_VALUES = 10_000  # in a recipe, after its aliases are expanded
MOST_DIGITS = 4_300  # characters of a number, where Python stops by itself

# ---- both ----
MOST_NESTED = 20  # lists in lists

# ---- images and COCO files ----
MOST_PIXELS = 178_956_970  # 512 MB as RGB, where Pillow stops by itself
MOST_MASKED = 2_000_000_000  # pixels of all masks of an image

# ---- options ----
MOST_PROCESSES = 512  # loader workers, training runs at a time
MOST_OPTION = 1_000_000_000  # any other whole number

_REPEATED = ("depth", "layer", "iteration", "block", "repeat", "stage")
_SHOWN = 200  # characters of a value in a message


def shown(value: Any) -> str:
    """A value as Python writes it, for a message: one line, at most 200 characters."""
    try:
        return one_line(repr(value))
    except (ValueError, RecursionError):  # an integer of thousands of digits, or something nested deeply
        return f"something too long to be shown ({type(value).__name__})"


def one_line(text: str, most: int = _SHOWN) -> str:
    """Text for a message: one line, at most 200 characters or as many as given."""
    text = " ".join(text.encode(errors="backslashreplace").decode().split())
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def reason(error: BaseException) -> str:
    """What an error says, in one line; its name if it says nothing."""
    return one_line(str(error)) or type(error).__name__


def parse_json(text: str | bytes, what: str) -> Any:
    """JSON whose text can be written and shown again. `what` names it in messages."""
    try:
        value = json.loads(text)
        os.fsencode(json.dumps(value, ensure_ascii=False))  # half of a surrogate pair is no text
    except RecursionError:
        raise InputError(f"{what} is nested too deeply: at most {MOST_NESTED} levels") from None
    except UnicodeEncodeError:
        raise InputError(f"{what} has text that is not Unicode (half of a surrogate pair)") from None
    except ValueError as error:  # also bytes that are not UTF-8, and integers of thousands of digits
        raise InputError(f"{what} is not JSON ({reason(error)}): {shown(text)}") from None
    return value


def check_arguments(arguments: Any, what: str) -> None:
    """Refuse arguments of a model that would take forever to build or to run."""
    for count, (keys, value) in enumerate(leaves(arguments, what), 1):
        if count > MOST_ARGUMENTS:
            raise InputError(f"{what} has more than {MOST_ARGUMENTS} values")
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        repeated = any(word in str(key).lower() for key in keys for word in _REPEATED)
        sized = any("size" in str(key).lower() for key in keys)
        most = DEEPEST if repeated else MOST_SIDE if sized else LARGEST_ARGUMENT
        if not -most <= value <= most:  # NaN neither
            name = one_line(".".join(map(str, keys)))
            raise InputError(f"{what} has {name} = {shown(value)}: at most {most} is possible")


def leaves(tree: Any, what: str, keys: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The values in lists and dicts, each with the keys that lead to it."""
    if len(keys) > MOST_NESTED:
        raise InputError(f"{what} is nested too deeply: at most {MOST_NESTED} levels")
    if isinstance(tree, dict | list | tuple):
        yield keys, None  # empty ones count too
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(value, what, (*keys, key))
    else:
        yield keys, tree


def usable_input(size: tuple[int, ...], mean: list[float], std: list[float], crop_pct: float) -> bool:
    """Whether images can be resized and normalised like this."""
    return (
        max(size[1:]) <= MOST_SIDE
        and max(size[1:]) <= MOST_SIDE * crop_pct
        and all(STD_RANGE[0] <= number <= STD_RANGE[1] for number in std)
        and all(abs(number) <= MOST_MEAN for number in mean)
    )


def is_unicode(text: str) -> bool:
    """Whether it is text, or a name of a file that is not UTF-8: not half of a surrogate pair."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def finite(value: Any) -> bool:
    """Whether it is a number that a float can hold."""
    try:
        return not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False


def overflows(text: str) -> bool:
    """Whether it is a number in digits that no float can hold; "inf" is not."""
    try:
        return math.isinf(float(text)) and "inf" not in text.lower()
    except ValueError:
        return False
