"""Generated weights files. Those that can be loaded are used once, as the commands do."""

import json
import math
import os
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from laplacianformer import classification, detection, segmentation, sequences
from laplacianformer._util.errors import InputError
from laplacianformer.weights import _description, load_weights
from tests.fuzz import nasty
from tests.fuzz.files import Case, Samples, dumped, expecting
from tests.fuzz.outcome import ClearError, SilentlyWrong

_SIDE = 64  # pixels: the limit of the package is far more than a test has time for
_SIDES: list[Any] = [
    *(0, -1, 1, 16, 31, 32, 33, 64, 224, 1000, 2048, 8191, 8192, 10**5, 10**9, 32.0, "32", None),
    *([32, 64], [64, 8192], [32]),
]
_TEXTS = ("description", "data", "commit", "date", "recipe", "metrics", "architecture", "sha256", "task")
_NUMBERS = (math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-45)


def weights_file(rng: random.Random, samples: Samples) -> Case:
    """A weights file with other metadata, another header, damaged bytes, or numbers that are not finite."""
    name = rng.choice([*["classifier"] * 3, "detector", "segmenter", "encoder", "converted", "swin"])
    load, use = _KINDS.get(name, (load_weights, _classify))
    data = (samples.folder / f"{name}.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, tensors = json.loads(data[8 : 8 + length]), bytearray(data[8 + length :])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))  # safetensors writes them in any order
    kind, said = rng.random(), header["__metadata__"]
    if kind < 0.08:
        said[rng.choice([*_TEXTS, nasty.text(rng)])] = rng.choice(["x", "\n", "日本 "]) * int(10 ** rng.uniform(2, 6))
    elif kind < 0.16 or (name == "swin" and kind < 0.5):
        _resize(rng, said)
    elif kind < 0.6:
        key = rng.choice(list(said))
        try:
            said[key] = dumped(nasty.change(rng, json.loads(said[key])))
        except ValueError:
            said[key] = nasty.text(rng)
    elif kind < 0.72:
        header = nasty.change(rng, header)
    elif kind < 0.86:
        checked = rng.random() < 0.2 or not said.pop("sha256", "")
        for _ in range(rng.choice([1, 1, 20])):
            struct.pack_into("<f", tensors, 4 * rng.randrange(len(tensors) // 4), rng.choice(_NUMBERS))
    text = dumped(header).encode(errors="surrogatepass")
    data = struct.pack("<Q", len(text)) + text
    if kind >= 0.86:
        data = nasty.damage(rng, data + bytes(tensors[:8]))
    path = samples.folder / f"case-{rng.randrange(10**9)}.safetensors"

    def run() -> None:
        path.write_bytes(data + tensors)
        try:
            with expecting(InputError):
                loaded = load(path)
                if 0.72 <= kind < 0.86 and checked:
                    raise SilentlyWrong("other numbers than those that were written")
                use(loaded, samples)
        finally:
            path.unlink(missing_ok=True)

    return run


def _resize(rng: random.Random, said: dict[str, str]) -> None:
    """Let a file ask for a model of another image size, which may have tables that are not in the file."""
    side = rng.choice(_SIDES)
    said["model_args"] = json.dumps({**json.loads(said["model_args"]), "img_size": side})
    stated = json.loads(said.get("input", "{}"))
    if "size" in stated and rng.random() < 0.7:
        said["input"] = json.dumps({**stated, "size": [3, *side] if isinstance(side, list) else [3, side, side]})


def _classify(loaded: Any, samples: Samples) -> None:
    for said in (_description.describe(loaded), _description.origin(loaded)):
        if len(os.fsencode(said)) > 40_000:
            raise SilentlyWrong(f"{len(said)} characters of description")
    channels, *sides = loaded.input["size"]
    if not getattr(getattr(loaded.model, "patch_embed", None), "strict_img_size", False):
        sides = [min(_SIDE, side) for side in sides]
    small = replace(loaded, input={**loaded.input, "size": (channels, *sides)})
    (found,) = classification.predict(small, [str(samples.picture)])
    _check(found.failure, [probability for _, probability in found.ranking])


def _detect(loaded: Any, samples: Samples) -> None:
    transform = loaded.model.transform
    transform.min_size = tuple(min(_SIDE, side) for side in transform.min_size)
    transform.max_size = min(_SIDE, transform.max_size)
    (found,) = detection.detect(loaded, [str(samples.picture)], threshold=0.0)
    _check(found.failure, [number for thing in found.objects for number in (thing.score, *thing.box)])


def _segment(loaded: Any, samples: Samples) -> None:
    side = loaded.preparation.short_side
    small = replace(loaded.preparation, short_side=side and min(_SIDE, side))
    (found,) = segmentation.segment(replace(loaded, preparation=small), [str(samples.picture)])
    _check(found.failure, [])
    if not found.failure and (found.classes >= len(loaded.labels.names)).any():
        raise SilentlyWrong(f"classes {found.classes.max()} of {len(loaded.labels.names)}")


def _encode(loaded: Any, samples: Samples) -> None:
    expression = loaded.sequence == "listops"
    names = (
        ["[MAX 4 3 [MIN 2 3 ] 1 ]"] if expression else [str(samples.picture)] * (1 + (loaded.sequence == "retrieval"))
    )
    for found in sequences.predict(loaded, names):
        _check(found.failure, [probability for _, probability in found.ranking])


def _check(failure: str, numbers: list[float]) -> None:
    if failure:
        raise ClearError(failure)
    if not all(map(math.isfinite, numbers)):
        raise SilentlyWrong(f"not finite: {numbers}")


_KINDS: dict[str, tuple[Callable[..., Any], Callable[[Any, Samples], None]]] = {
    "detector": (detection.load_detector, _detect),
    "segmenter": (segmentation.load_segmenter, _segment),
    "encoder": (sequences.load_encoder, _encode),
}
