"""The kinds of generated inputs, and how one of them is run by its number."""

import random

from tests.fuzz import calls, files, options
from tests.fuzz.outcome import classify

# Each makes a case of a random generator, and how large its part of all cases is.
KINDS = {
    "weights": (files.weights_file, 0.2),
    "recipe": (files.recipe, 0.2),
    "coco": (files.coco_file, 0.12),
    "image": (files.image, 0.08),
    "checkpoint": (files.checkpoint_file, 0.04),
    "options": (options.command_line, 0.08),
    "op": (calls.op_call, 0.28),
}


def run_case(kind: str, seed: int, number: int, samples: files.Samples) -> tuple[str, str]:
    """The class of the case with this number, and what was said."""
    make, _ = KINDS[kind]
    case = make(random.Random(f"{kind} {seed} {number}"), samples)
    return classify(case)
