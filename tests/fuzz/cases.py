"""The kinds of generated inputs, and how one of them is run by its number."""

import random

from tests.fuzz import calls, files, folders, options, weights
from tests.fuzz.outcome import classify

# Each makes a case of a random generator, and how large its part of all cases is.
KINDS = {
    "weights": (weights.weights_file, 0.17),
    "recipe": (files.recipe, 0.15),
    "coco": (files.coco_file, 0.08),
    "image": (files.image, 0.06),
    "text": (folders.text_data, 0.08),
    "labels": (folders.label_data, 0.06),
    "folder": (folders.folder_tree, 0.06),
    "metrics": (folders.metrics_file, 0.03),
    "checkpoint": (files.checkpoint_file, 0.03),
    "options": (options.command_line, 0.05),
    "pictures": (options.pictures, 0.04),
    "op": (calls.op_call, 0.19),
}


def run_case(kind: str, seed: int, number: int, samples: files.Samples) -> tuple[str, str]:
    """The class of the case with this number, and what was said."""
    make, _ = KINDS[kind]
    case = make(random.Random(f"{kind} {seed} {number}"), samples)
    return classify(case)
