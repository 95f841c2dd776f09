"""Associative recall: every question has one answer, which is the label; what is read is checked."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laplacianformer._util.errors import InputError
from laplacianformer.sequences._recall import CLASSES, LETTERS, LONGEST, TOKENS, encode, generate, parse
from laplacianformer.sequences._sources import VOCABULARY, Wanted, open_sequences


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 10**6), st.integers(4, LONGEST))
def test_the_label_is_the_digit_of_the_one_pair_with_the_letter_of_the_question(seed, number, length) -> None:
    tokens, label = generate(seed, number, length)
    *pairs, question = tokens
    assert len(tokens) == length
    assert len({pair[0] for pair in pairs}) == length - 1
    assert [pair[1] for pair in pairs if pair[0] == question[0]] == [CLASSES[label]]
    assert parse(" ".join(tokens)) == tokens


def test_letters_digits_and_places_are_drawn_evenly() -> None:
    drawn = [generate(0, number, LONGEST) for number in range(4000)]
    labels = [label for _, label in drawn]
    first = [tokens[0][0] for tokens, _ in drawn]
    places = [[token[0] for token in tokens].index(tokens[-1][0]) for tokens, _ in drawn]
    for values, kinds in ((labels, 8), (first, len(LETTERS)), (places, LONGEST - 1)):
        counts = [values.count(value) for value in set(values)]
        assert len(counts) == kinds
        assert max(counts) < 1.35 * len(values) / kinds


def test_tokens_are_numbers_from_one_on_and_the_model_knows_them() -> None:
    assert encode(list(TOKENS)).tolist() == list(range(1, len(TOKENS) + 1))
    assert VOCABULARY["recall"] == len(TOKENS) + 1
    tokens, label = open_sequences(Wanted("recall", "test", LONGEST, samples=3)).read(2)
    assert tokens.shape == (LONGEST,)
    assert 0 <= label < len(CLASSES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no question at the end"),
        ("a1 b2", "no question at the end: expected something like c4 a7 f0 a\\?, got 'b2'"),
        ("a1 b9 a?", "unknown pair 'b9'"),
        ("a1 b? a?", r"unknown pair 'b\?'"),
        ("b1 a?", "must occur once before it, it does so 0 times"),
        ("a1 a2 a?", "must occur once before it, it does so 2 times"),
    ],
)
def test_what_is_no_question_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(text)


def test_more_pairs_than_letters_are_refused() -> None:
    with pytest.raises(InputError, match=r"data\.length must be at most 17 for recall, got 18"):
        open_sequences(Wanted("recall", "train", 18, samples=3))
