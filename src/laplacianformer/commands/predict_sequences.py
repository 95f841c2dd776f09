"""`laplacianformer predict` for sequence encoders."""

import argparse

from laplacianformer._util.errors import InputError
from laplacianformer._util.text import printable
from laplacianformer.commands import options, ranked


def predict(arguments: argparse.Namespace) -> int:
    """Print the most probable classes. The exit code is 0, 1 if some sequences failed, 2 if all did."""
    from laplacianformer import sequences

    if arguments.attention is not None:
        raise InputError("--attention draws what a classifier of images attends to: these weights are for sequences")
    loaded = sequences.load_encoder(arguments.weights)
    names, device = arguments.images, arguments.device
    with options.computing(arguments):
        predictions = list(sequences.predict(loaded, names, top=arguments.top, device=device))
    results = [ranked.Ranked(one.name, _short(one.name), one.ranking, one.failure) for one in predictions]
    mixer, length = loaded.model.arguments["attention"], loaded.model.length
    caption = f"{loaded.sequence}, {mixer} attention, up to {length:,} tokens"
    weights = {
        "file": str(loaded.path),
        "architecture": loaded.metadata["architecture"],
        "sequence": loaded.sequence,
        "classes": loaded.classes,
    }
    return ranked.show("sequence", results, caption, weights, as_json=arguments.json)


def _short(name: str) -> str:
    """The beginning of a long expression."""
    text = printable(name)
    return text if len(text) <= 120 else f"{text[:117]}..."
