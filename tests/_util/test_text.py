"""Text from elsewhere is shown without control characters, and written as JSON that every parser takes."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laplacianformer._util.text import printable, to_json, unicode_text

ANY_TEXT = st.text(st.characters(exclude_categories=[]))  # halves of characters, too


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b2J", r"\x9b2J"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        (os.fsdecode(b"caf\xe9.png"), r"caf\xe9.png"),
        ("\ud800", r"\ud800"),
        ("Zoë, 猫\u3000と犬, 👩‍🚀", "Zoë, 猫\u3000と犬, 👩‍🚀"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text, shown):
    assert printable(text) == shown


def test_some_characters_may_be_kept():
    assert printable("a\nb\tc\x1b", keep="\n") == "a\nb\\tc\\x1b"


@given(ANY_TEXT)
def test_any_text_can_be_printed_and_written(text):
    assert not any(ord(character) < 32 or 0x7F <= ord(character) < 0xA0 for character in printable(text))
    printable(text).encode()
    unicode_text(text).encode()


def no_constant(name):
    raise ValueError(f"{name} is not JSON")


PLAIN = ANY_TEXT | st.floats() | st.integers() | st.none() | st.booleans()
VALUES = st.recursive(PLAIN, lambda inside: st.lists(inside) | st.dictionaries(ANY_TEXT, inside) | st.tuples(inside))


@given(VALUES)
def test_json_has_no_constants_and_no_halves_of_characters(value):
    read = json.loads(to_json(value), parse_constant=no_constant)
    json.dumps(read, ensure_ascii=False).encode()


def test_json_of_plain_values_is_what_it_was():
    value = {"a": [1, 2.5, None, True, "Zoë\n"], "b": {"1": ()}}
    assert to_json(value) == json.dumps(value, indent=2)
    assert to_json([float("inf"), float("-inf"), float("nan")]) == json.dumps([None] * 3, indent=2)
