"""Sequences of tokens: the tasks of Long Range Arena, and the encoder that they are compared with.

from laplacianformer import sequences

recipe = sequences.load_recipe("lra-listops", ["optimise.epochs=1", "data.train_samples=3200"])
result = sequences.train(recipe, Path("runs/listops"))
"""

from typing import TYPE_CHECKING

from laplacianformer._util.lazy import lazy_exports
from laplacianformer.sequences._encoder import SequenceEncoder
from laplacianformer.sequences._inference import SequencePrediction, predict
from laplacianformer.sequences._sources import Sequences, Wanted, open_sequences
from laplacianformer.sequences._weights import EncoderWeights, load_encoder, save_encoder

if TYPE_CHECKING:
    from laplacianformer.sequences._evaluation import SequenceEvaluation, evaluate, open_batches
    from laplacianformer.sequences._recipe import (
        Encoder,
        SequenceData,
        SequenceOptimise,
        SequenceRecipe,
        load_recipe,
    )
    from laplacianformer.sequences._task import Result, SequenceTask, train

__all__ = [
    "Encoder",
    "EncoderWeights",
    "Result",
    "SequenceData",
    "SequenceEncoder",
    "SequenceEvaluation",
    "SequenceOptimise",
    "SequencePrediction",
    "SequenceRecipe",
    "SequenceTask",
    "Sequences",
    "Wanted",
    "evaluate",
    "load_encoder",
    "load_recipe",
    "open_batches",
    "open_sequences",
    "predict",
    "save_encoder",
    "train",
]

# What needs Lightning and pydantic is imported on first use: pip install 'laplacianformer[train]'.
__getattr__ = lazy_exports(
    __name__,
    {
        "_evaluation": ["SequenceEvaluation", "evaluate", "open_batches"],
        "_recipe": ["Encoder", "SequenceData", "SequenceOptimise", "SequenceRecipe", "load_recipe"],
        "_task": ["Result", "SequenceTask", "train"],
    },
)
