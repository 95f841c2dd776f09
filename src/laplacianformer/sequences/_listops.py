"""ListOps: nested lists of digits under four operators, and the digit that they evaluate to.

Nangia and Bowman, "ListOps", 2018, with the rules of Tay et al., "Long Range Arena", 2021: an argument is a list with
probability 0.25 and a digit otherwise, a list has 2 to 10 arguments, and the depth is at most 10. Expressions are drawn
until one has more than 500 and fewer than 2,000 tokens. An expression is a function of the seed and its number alone.
"""

import random
import statistics
from dataclasses import dataclass

import numpy as np

from laplacianformer._util.errors import InputError
from laplacianformer.data import mix

_OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")  # the last two: median, rounded down, and sum modulo 10
_END = "]"
TOKENS = (*_OPERATORS, _END, *"0123456789")  # token k is TOKENS[k - 1]; 0 is padding
CLASSES = tuple("0123456789")
_NUMBERS = {token: number for number, token in enumerate(TOKENS, 1)}
_LIST = 0.25  # probability that an argument is a list


@dataclass(frozen=True)
class ListOps:
    """Which expressions are drawn: tokens between `shortest` and `longest`, neither included."""

    shortest: int = 500
    longest: int = 2000
    depth: int = 10
    arguments: int = 10

    def generate(self, seed: int, number: int) -> tuple[list[str], int]:
        """The tokens of an expression, and its value."""
        chance = random.Random(mix(seed, number))
        while True:
            tokens: list[str] = []
            value = self._draw_list(chance, tokens, 1)
            if value is not None and self.shortest < len(tokens) < self.longest:
                return tokens, value

    def _draw_list(self, chance: random.Random, tokens: list[str], depth: int) -> int | None:
        """Append a list to the tokens. Returns its value, or None as soon as there are too many tokens."""
        draw = chance.random  # the only method whose numbers Python promises to keep
        arguments: list[int] = []
        index = len(tokens)
        tokens.append(_END)  # its operator is drawn last
        for _ in range(2 + int((self.arguments - 1) * draw())):
            if depth + 1 < self.depth and draw() < _LIST:
                value = self._draw_list(chance, tokens, depth + 1)
                if value is None:
                    return None
            else:
                value = int(10 * draw())
                tokens.append(CLASSES[value])
            arguments.append(value)
            if len(tokens) >= self.longest:
                return None
        tokens.append(_END)
        operator = _OPERATORS[int(len(_OPERATORS) * draw())]
        tokens[index] = operator
        return _apply(operator, arguments)


def _apply(operator: str, arguments: list[int]) -> int:
    if operator == "[MIN":
        return min(arguments)
    if operator == "[MAX":
        return max(arguments)
    return int(statistics.median(arguments)) if operator == "[MED" else sum(arguments) % 10


def encode(tokens: list[str]) -> np.ndarray:
    """Numbers of the tokens, from 1 on."""
    return np.array([_NUMBERS[token] for token in tokens], dtype=np.int16)


def parse(text: str) -> list[str]:
    """The tokens of an expression such as `[MAX 4 3 [MIN 2 3 ] 1 ]`, if it is one. Parentheses, which the published
    files have, mean nothing."""
    tokens = text.replace("(", " ").replace(")", " ").replace("]", " ] ").split()
    unknown = [token for token in tokens if token not in _NUMBERS]
    if unknown:
        raise InputError(f"unknown token {unknown[0]!r} in an expression: expected {', '.join(TOKENS)}")
    if not tokens:
        raise InputError("an expression without tokens: expected something like [MAX 4 3 [MIN 2 3 ] 1 ]")
    depth = 0
    for position, token in enumerate(tokens):
        if depth == 0 and position > 0:
            raise InputError(f"an expression that ends before its token {position + 1}, {token!r}: expected one list")
        depth += (token in _OPERATORS) - (token == _END)
        if depth < 0 or (token == _END and tokens[position - 1] in _OPERATORS):
            raise InputError(f"token {position + 1}, ']', ends no list, or one without arguments")
    if depth:
        raise InputError(f"an expression with {depth} lists that are not ended: expected as many ] as operators")
    return tokens
