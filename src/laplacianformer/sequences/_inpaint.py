"""Half of the pixels of a small grey image are hidden: how bright is each of them?

Every hidden pixel has an answer of its own, which its neighbours tell and an average over the image does not: an
encoder has to find them by their positions. Which pixels are hidden is a function of the seed and the number of the
image.
"""

import random
from typing import Any

import numpy as np

from laplacianformer.data import NO_LABEL, mix

LEVELS = 8  # of brightness, each of 32 of the 256 values
HIDDEN = LEVELS  # the token of a hidden pixel; those of the others are their levels
CLASSES = tuple(f"{256 * level // LEVELS} to {256 * (level + 1) // LEVELS - 1}" for level in range(LEVELS))

Array = np.ndarray[Any, Any]


def hide(pixels: Array, seed: int, number: int) -> tuple[Array, Array]:
    """Tokens of the pixels (N,), 0 to 255, of which half are hidden, and the levels of those; `NO_LABEL` of others."""
    draw = random.Random(mix(seed, number)).random  # the only method whose numbers Python promises to keep
    hidden = np.array(sorted(range(len(pixels)), key=lambda _: draw())[: len(pixels) // 2])
    tokens = (pixels.astype(np.int64) * LEVELS // 256).astype(np.int16)
    targets = np.full(len(pixels), NO_LABEL, dtype=np.int16)
    targets[hidden] = tokens[hidden]
    tokens[hidden] = HIDDEN
    return tokens, targets
