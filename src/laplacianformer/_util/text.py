"""Text from elsewhere (names of files, classes, metadata) where it is shown or written."""

import json
import math
import re
from typing import Any

# Control characters, which may move the cursor, change the colour or answer for the user; those that reverse the
# direction of what follows; separators of lines; and halves of characters, which stand for bytes that are not UTF-8.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_HALVES = re.compile("[\ud800-\udfff]")
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def printable(text: object, *, keep: str = "") -> str:
    r"""The text with each unsafe character but those of `keep` replaced by its escape: \x1b, \n, \u202e."""
    return _UNSAFE.sub(lambda found: found[0] if found[0] in keep else _escape(found[0]), str(text))


def unicode_text(text: str) -> str:
    r"""The text with bytes that are not UTF-8 replaced by their escapes, \xff, and all else as it is."""
    return _HALVES.sub(lambda found: _escape(found[0]), text)


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name, as Python decodes it
        code -= 0xDC00
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def to_json(value: Any) -> str:
    """JSON that every parser takes: what is not finite is null, and text is Unicode."""
    return json.dumps(_strict(value), indent=2, allow_nan=False)


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {unicode_text(key) if isinstance(key, str) else key: _strict(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(entry) for entry in value]
    if isinstance(value, str):
        return unicode_text(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
