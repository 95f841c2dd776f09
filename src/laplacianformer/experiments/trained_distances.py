"""Distances between queries and keys as in `qk-distances`, in a model that was trained elsewhere, with intervals.

The intervals are of the bootstrap over images: the same pairs, of images drawn again with replacement.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from laplacianformer._util.errors import InputError
from laplacianformer._util.tensor_files import read_metadata
from laplacianformer.convert import Teacher
from laplacianformer.convert._teacher import load_teacher, stated_input
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.inputs import held_out_images
from laplacianformer.experiments.qk_distances import DISTANCES, HEAVY, distances, draw, tails
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.weights import load_weights

SOURCE: str = "Figure 1, on other weights"
CLAIM: str = (
    "In trained vision transformers, squared l2 distances between queries and keys have heavy tails; l1 distances are "
    "more concentrated."
)
IMAGES, QUICK_IMAGES = 1000, 8
DRAWS = 1000  # of the bootstrap
LIMITS = (0.025, 0.975)

Kurtoses = Mapping[str, Tensor]  # by distance: of the images as they are, and of those drawn again, (1 + DRAWS,)


def run(settings: Settings) -> Outcome:
    name, model, preprocessing = _model(settings)
    images = held_out_images(settings, QUICK_IMAGES if settings.quick else IMAGES, preprocessing)
    found = distances(model, images)
    rows: list[Row] = []
    kurtoses: dict[str, Tensor] = {}
    again = resampled(int(max(layer.max() for layer in found.images)) + 1)
    for distance in DISTANCES:
        layers = found.by_kind[distance]
        rows += [{"model": name, "distance": distance, "layer": layer} | tails(values) for layer, values in layers]
        of_layers = [
            excess_kurtosis(values, image, again) for (_, values), image in zip(layers, found.images, strict=True)
        ]
        kurtoses[distance] = torch.stack(of_layers).mean(0)
    write_rows(settings.results / "tails.csv", rows)
    samples = {
        (name, distance): torch.cat([values.flatten() for _, values in found.by_kind[distance]])
        for distance in DISTANCES
    }
    draw(samples, settings.results / "trained-distances.png")
    spread = {
        distance: _mean([row["variation"] for row in rows if row["distance"] == distance]) for distance in DISTANCES
    }
    return judge(kurtoses, spread, f"{name} on {len(images)} images")


def _model(settings: Settings) -> tuple[str, nn.Module, dict[str, Any]]:
    """Its name, the model in evaluation mode, and its preprocessing."""
    if settings.model is not None:
        make: Any = Teacher  # of pydantic, which mypy does not see through
        stated = stated_input(settings.model)
        weights = None if settings.weights is None else str(settings.weights)
        teacher = load_teacher(make(name=settings.model, weights=weights))
        return teacher.name, teacher.model, {**stated, "size": (3, stated["size"], stated["size"])}
    if settings.weights is None:
        raise InputError(
            "this experiment looks into trained weights: give --weights FILE or --model NAME, and images with "
            "--imagenet DIR"
        )
    if settings.weights.suffix == ".safetensors" and "architecture" not in read_metadata(settings.weights):
        raise InputError(f"{settings.weights} does not say what its tensors belong to: name that with --model NAME")
    loaded = load_weights(settings.weights)
    return loaded.metadata["architecture"], loaded.model, loaded.input


def resampled(images: int) -> Tensor:
    """How often each image counts, (1 + DRAWS, images): once, then as often as it was drawn."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(0, images, (DRAWS, images), generator=generator)
    once = torch.ones(DRAWS, images, dtype=torch.float64)
    return torch.cat([once[:1], torch.zeros_like(once).scatter_add_(1, drawn, once)])


def excess_kurtosis(values_hp: Tensor, image_p: Tensor, counts_ri: Tensor) -> Tensor:
    """Averaged over heads, for each row of counts, (r,): from the sums of the powers of each image."""
    centred = values_hp - values_hp.mean(-1, keepdim=True)  # so that no digits are lost in the powers
    powers = torch.stack([centred**exponent for exponent in range(5)])
    sums = torch.zeros(*powers.shape[:2], counts_ri.shape[1], dtype=powers.dtype).index_add_(-1, image_p, powers)
    count, one, two, three, four = sums @ counts_ri.mT  # (h, r) each
    mean, two, three, four = (each / count for each in (one, two, three, four))
    variance = two - mean**2
    fourth = four - 4 * mean * three + 6 * mean**2 * two - 3 * mean**4
    return (fourth / variance**2 - 3).mean(0)


def judge(kurtoses: Kurtoses, spread: Mapping[str, float], where: str) -> Outcome:
    """Agrees if squared distances have a heavy tail, and l1 a lighter one, beyond the intervals; in part if l1
    distances are only more concentrated.

    spread: by distance, the standard deviation over the mean.
    """
    differences = {"l2 squared minus l1": ("l2 squared", "l1"), "l2 minus l1": ("l2", "l1")}
    compared = {name: kurtoses[first] - kurtoses[second] for name, (first, second) in differences.items()}
    said = [f"{name} {_interval(values)}" for name, values in {**kurtoses, **compared}.items()]
    measured = (
        f"excess kurtosis (0 for a normal distribution, 95 % interval), averaged over heads and layers, {where}: "
        f"{', '.join(said)}. Standard deviation over mean: "
        f"{', '.join(f'{distance} {value:.2f}' for distance, value in spread.items())}. "
        "l2, which is not squared, shows what is due to the square alone."
    )
    if _low(kurtoses["l2 squared"]) > HEAVY and _low(compared["l2 squared minus l1"]) > 0:
        return Outcome(measured, "agrees")
    return Outcome(measured, "agrees in part" if spread["l1"] < spread["l2 squared"] else "disagrees")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _low(values: Tensor) -> float:
    return float(values[1:].quantile(LIMITS[0]))


def _interval(values: Tensor) -> str:
    low, high = values[1:].quantile(torch.tensor(LIMITS, dtype=values.dtype)).tolist()
    return f"{float(values[0]):.2f} ({low:.2f} to {high:.2f})"
