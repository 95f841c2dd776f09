"""`laplacianformer eval` for sequence encoders."""

import argparse
from collections.abc import Sequence

from laplacianformer._util.errors import InputError
from laplacianformer.commands import evaluate_classes


def evaluate(arguments: argparse.Namespace) -> Sequence[str]:
    """Measure and write; returns a line for each sequence that can't be read."""
    from laplacianformer import sequences

    loaded = sequences.load_encoder(arguments.weights)
    try:
        measure, open_batches = sequences.evaluate, sequences.open_batches
    except ImportError as error:
        raise InputError(f"evaluating an encoder needs {error.name}: pip install 'laplacianformer[train]'") from None
    options = {"batch_size": arguments.batch_size, "workers": arguments.workers}
    return evaluate_classes.evaluate(
        arguments,
        loaded,
        open_batches(loaded, arguments.data, arguments.split, **options),
        measure,
        score=evaluate_classes.Score("accuracy", "accuracy"),
        unit="sequences",
        rows=lambda result: [("model alone", f"{result.sequences_per_second:,.0f} sequences/s")],
    )
