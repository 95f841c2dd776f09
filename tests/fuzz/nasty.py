"""Values that programs stumble over, and changes of what is right."""

import math
import random
import string
from typing import Any

NUMBERS: list[Any] = [
    *(0, -1, 1, 2, 3, 7, 255, 256, 65535, 65536, 10**6, 10**9, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, 10**400),
    *(0.0, -0.0, 0.1, 0.5, 1.0, 1.5, -0.5, 1e-9, 1e-300, 5e-324, 1e9, 1e38, 1e39, 1e300, 1.7e308),
    *(math.inf, -math.inf, math.nan),
]
TEXTS = [
    *("", " ", "x", "cpu", "true", "None", "../..", "/dev/null", "a\nb", "a\0b", "\x1b[31mred", "ü", "日本", "\u202e"),
    *(
        "\ud800",
        "%s%n",
        "{}",
        "${HOME}",
        "a" * 300,
        "a" * 20_000,
        "1e400",
        "0x10",
        "\u0663",
        "\uff11\uff12",
        "nan",
        "-",
        "--",
        "=",
    ),
]


def value(rng: random.Random, depth: int = 0) -> Any:
    """Anything that JSON can say."""
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind <= 2:
        return rng.choice(NUMBERS)
    if kind <= 4:
        return text(rng)
    if kind == 5:
        return [value(rng, depth + 1) for _ in range(rng.choice([0, 1, 2, 3, 4, 4, 50]))]
    if kind == 6:
        return {str(text(rng)): value(rng, depth + 1) for _ in range(rng.choice([0, 1, 2, 5]))}
    tree: Any = value(rng, depth + 1)
    for _ in range(rng.choice([1, 10, 30, 3000])):
        tree = [tree]
    return tree


def text(rng: random.Random) -> str:
    if rng.random() < 0.6:
        return rng.choice(TEXTS)
    return "".join(rng.choices(string.printable, k=rng.choice([1, 5, 40])))


def change(rng: random.Random, tree: Any) -> Any:
    """The tree with one place in it changed: replaced, removed, doubled, or scaled."""
    if isinstance(tree, dict) and tree and rng.random() < 0.9:
        key = rng.choice(list(tree))
        kind = rng.random()
        if kind < 0.1:
            return {name: old for name, old in tree.items() if name != key}
        if kind < 0.2:
            return {**tree, text(rng): value(rng)}
        return {**tree, key: change(rng, tree[key])}
    if isinstance(tree, list) and tree and rng.random() < 0.8:
        index = rng.randrange(len(tree))
        kind = rng.random()
        if kind < 0.1:
            return tree[:index] + tree[index + 1 :]
        if kind < 0.2:
            return [*tree, tree[index]]
        return [*tree[:index], change(rng, tree[index]), *tree[index + 1 :]]
    if isinstance(tree, int | float) and not isinstance(tree, bool) and rng.random() < 0.4:
        return tree * rng.choice([-1, 0, 2, 10, 1000, 1e-3, 1e9, 1e300])
    return value(rng)


def damage(rng: random.Random, data: bytes) -> bytes:
    """The bytes cut, flipped, zeroed, or with others among them."""
    broken = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 10])):
        if not broken:
            break
        start = rng.randrange(len(broken))
        kind = rng.randrange(5)
        if kind == 0:
            del broken[start:]
        elif kind == 1:
            broken[start] ^= 1 << rng.randrange(8)
        elif kind == 2:
            length = rng.choice([1, 4, 64, 4096])
            broken[start : start + length] = bytes(min(length, len(broken) - start))
        elif kind == 3:
            broken[start:start] = rng.randbytes(rng.choice([1, 8, 100]))
        else:
            del broken[start : start + rng.choice([1, 4, 100])]
    return bytes(broken)
