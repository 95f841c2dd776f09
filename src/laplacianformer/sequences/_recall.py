"""Associative recall: pairs of a letter and a digit, such as `c4 a7 f0`, then a letter, `a?`: which digit was it?

The task of Ba et al., "Using Fast Weights to Attend to the Recent Past", 2016, with a pair as one token: it takes one
comparison of the last token with all others, and nothing can be said from neighbours or from counts of tokens. A
sequence is a function of the seed and its number alone.
"""

import random

import numpy as np

from laplacianformer._util.errors import InputError
from laplacianformer.data import mix

LETTERS, DIGITS = "abcdefghijklmnop", "01234567"
# Token k is TOKENS[k - 1]; 0 is padding, of which there is none in generated sequences.
TOKENS = (*(letter + digit for letter in LETTERS for digit in DIGITS), *(f"{letter}?" for letter in LETTERS))
CLASSES = tuple(DIGITS)
LONGEST = len(LETTERS) + 1
_NUMBERS = {token: number for number, token in enumerate(TOKENS, 1)}


def generate(seed: int, number: int, length: int) -> tuple[list[str], int]:
    """The tokens of a sequence, in which no letter has two digits, and the digit that is asked for."""
    draw = random.Random(mix(seed, number)).random  # the only method whose numbers Python promises to keep
    letters = sorted(LETTERS, key=lambda _: draw())[: length - 1]
    digits = [int(len(DIGITS) * draw()) for _ in letters]
    asked = int(len(letters) * draw())
    pairs = [letter + DIGITS[digit] for letter, digit in zip(letters, digits, strict=True)]
    return [*pairs, f"{letters[asked]}?"], digits[asked]


def encode(tokens: list[str]) -> np.ndarray:
    """Numbers of the tokens, from 1 on."""
    return np.array([_NUMBERS[token] for token in tokens], dtype=np.int16)


def parse(text: str) -> list[str]:
    """The tokens of a sequence such as `c4 a7 f0 a?`, if it is one."""
    *pairs, question = text.split() or [""]
    letters = [pair[:1] for pair in pairs]
    if question not in TOKENS or not question.endswith("?"):
        raise InputError(f"no question at the end: expected something like c4 a7 f0 a?, got {question!r}")
    unknown = [pair for pair in pairs if pair not in TOKENS or pair.endswith("?")]
    if unknown:
        raise InputError(
            f"unknown pair {unknown[0]!r}: expected a letter from {LETTERS[0]} to {LETTERS[-1]} and a digit from "
            f"{DIGITS[0]} to {DIGITS[-1]}"
        )
    if (found := letters.count(question[0])) != 1:
        raise InputError(f"the letter of {question!r} must occur once before it, it does so {found} times")
    return [*pairs, question]
