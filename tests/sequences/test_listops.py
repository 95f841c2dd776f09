"""ListOps: what is generated follows the published rules and is labelled with its value; what is read is checked."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laplacianformer._util.errors import InputError
from laplacianformer.sequences._listops import CLASSES, TOKENS, ListOps, encode, parse

# A list without lists in it.
INNERMOST = re.compile(r"\[(MIN|MAX|MED|SM)((?: \d)+) \]")


def reduced(match: re.Match[str]) -> str:
    numbers = sorted(int(digit) for digit in match[2].split())
    middle = (numbers[(len(numbers) - 1) // 2] + numbers[len(numbers) // 2]) // 2
    return str({"MIN": numbers[0], "MAX": numbers[-1], "MED": middle, "SM": sum(numbers) % 10}[match[1]])


def value_of(text: str) -> int:
    """By rewriting: innermost lists are replaced by their values until one digit is left."""
    while len(text) > 1:
        shorter = INNERMOST.sub(reduced, text)
        assert shorter != text, f"no list can be evaluated in {text[:80]}"
        text = shorter
    return int(text)


def depth_of(tokens: list[str]) -> int:
    depth = deepest = 0
    for token in tokens:
        depth += token.startswith("[") - (token == "]")
        deepest = max(deepest, depth)
    return deepest


def arguments_of(text: str) -> list[int]:
    counts = []
    while len(text) > 1:
        counts += [len(match[2].split()) for match in INNERMOST.finditer(text)]
        text = INNERMOST.sub("0", text)
    return counts


def test_the_evaluator_of_these_tests_knows_known_values() -> None:
    assert value_of("[MAX 4 3 [MIN 2 3 ] 1 [MED 1 5 8 9 2 ] ]") == 5
    assert value_of("[SM 9 9 [MED 3 4 ] ]") == 1, "the median of an even number is rounded down"


@pytest.mark.parametrize("number", range(40))
def test_an_expression_has_its_value_and_follows_the_published_rules(number: int) -> None:
    tokens, value = ListOps().generate(3, number)
    text = " ".join(tokens)
    assert value_of(text) == value
    assert 500 < len(tokens) < 2000
    assert depth_of(tokens) <= 9, "the tenth level has digits only"
    counts = arguments_of(text)
    assert min(counts) >= 2
    assert max(counts) <= 10
    assert set(tokens) <= set(TOKENS)


def test_operators_digits_values_and_numbers_of_arguments_are_all_drawn() -> None:
    drawn = [ListOps(20, 200).generate(0, number) for number in range(300)]
    assert {token for tokens, _ in drawn for token in tokens} == set(TOKENS)
    assert {str(value) for _, value in drawn} == set(CLASSES)
    assert {count for tokens, _ in drawn for count in arguments_of(" ".join(tokens))} == set(range(2, 11))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 10**6), st.integers(4, 40), st.integers(4, 100))
def test_every_range_of_lengths_is_kept_and_every_value_is_right(seed, number, shortest, more) -> None:
    tokens, value = ListOps(shortest, shortest + more).generate(seed, number)
    assert shortest < len(tokens) < shortest + more
    assert value_of(" ".join(tokens)) == value
    assert parse(" ".join(tokens)) == tokens


def test_the_same_seed_and_number_give_the_same_expression() -> None:
    assert ListOps().generate(5, 7) == ListOps().generate(5, 7)
    assert ListOps().generate(5, 7) != ListOps().generate(5, 8)
    assert ListOps().generate(5, 7) != ListOps().generate(6, 7)


def test_tokens_are_numbers_from_one_on_and_parentheses_mean_nothing() -> None:
    assert encode(list(TOKENS)).tolist() == list(range(1, 16))
    published = "( ( ( [MAX 4 ) ( ( [MIN 2 ) ] ) ) ] )"
    assert parse(published) == parse("[MAX 4 [MIN 2]]") == ["[MAX", "4", "[MIN", "2", "]", "]"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "without tokens"),
        ("[MAX 4 11 ]", r"unknown token '11' in an expression: expected \[MIN, \[MAX"),
        ("[MAX 4", r"1 lists that are not ended"),
        ("[MAX 4 ] 5", r"ends before its token 4, '5'"),
        ("[MAX ]", "one without arguments"),
        ("]", "ends no list"),
    ],
)
def test_what_is_no_expression_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(text)
