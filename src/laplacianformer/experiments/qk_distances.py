"""Distances between queries and keys in vision transformers: l1, squared l2 and l2, and the tails of each.

Distances are taken per head, between a random query and a random key of the same image (of the same window in Swin),
and divided by their median, because kernels have a scale of their own. Tails are measured by the excess kurtosis (0 for
a normal distribution) and by the fraction of outliers, which are more than 3 interquartile ranges above the third
quartile (1.2e-6 of a normal distribution); means over heads. The l2 distance, not squared, is a control: squaring
alone makes a tail heavier.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import timm
import torch
from torch import Tensor, nn

from laplacianformer._util.errors import InputError
from laplacianformer.classification._recipe import load_recipe
from laplacianformer.experiments.drawing import STYLES, tidy
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.inputs import CIFAR10, held_out_images, queries_and_keys
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.experiments.sweep import weights_of
from laplacianformer.experiments.trainings import PYRAMID, runs_of, train
from laplacianformer.plots._figure import new_figure, save
from laplacianformer.weights import load_weights

SOURCE: str = "Figure 1"
CLAIM: str = (
    "In trained DeiT, PVT and Swin, squared l2 distances between queries and keys have heavy tails, high variance and "
    "many outliers; l1 distances are more concentrated."
)
# Small models for 32 x 32 pixels; timm's PVT is its second version.
VIT = "{img_size: 32, patch_size: 4, embed_dim: 96, depth: 6, num_heads: 3}"
PVT = "{depths: [2, 2, 2, 2], embed_dims: [32, 64, 128, 160], num_heads: [1, 2, 4, 5], mlp_ratios: [4, 4, 4, 4]}"
SWIN = "{img_size: 32, patch_size: 2, window_size: 4, embed_dim: 32, depths: [2, 2, 2], num_heads: [1, 2, 4]}"
MODELS = {
    "DeiT": ("model.name=deit_tiny_patch16_224", f"model.args={VIT}"),
    "PVT": ("model.name=pvt_v2_b0", f"model.args={PVT}"),
    "Swin": ("model.name=swin_tiny_patch4_window7_224", f"model.args={SWIN}"),
}
PRETRAINED = {"DeiT": "deit_small_patch16_224", "PVT": "pvt_v2_b2", "Swin": "swin_tiny_patch4_window7_224"}
DISTANCES = ("l1", "l2 squared", "l2")
PAIRS = 2**14  # per head
BATCH_SIZE = 64  # images: the queries and keys of all layers are kept for as many at a time
HEAVY = 1.0  # a tail is called heavy from this excess kurtosis; a sum of 32 squared normal numbers has 0.4


def run(settings: Settings) -> Outcome:
    if settings.weights is not None or settings.model is not None:
        raise InputError("this experiment chooses its models: trained-distances takes --weights and --model")
    rows: list[Row] = []
    samples: dict[tuple[str, str], Tensor] = {}
    for name, state, model, images in _models(settings):
        found = distances(model, images).by_kind
        for distance in DISTANCES:
            rows += [
                {"model": name, "weights": state, "distance": distance, "layer": layer} | tails(values)
                for layer, values in found[distance]
            ]
            samples[f"{name}, {state}", distance] = torch.cat([values.flatten() for _, values in found[distance]])
    write_rows(settings.results / "tails.csv", rows)
    draw(samples, settings.results / "qk-distances.png")
    return judge(rows)


def _models(settings: Settings) -> Iterator[tuple[str, str, nn.Module, Tensor]]:
    """Name, "random" or "trained", model and images; on ImageNet, the official weights."""
    if settings.imagenet is not None:
        for name, architecture in PRETRAINED.items():
            try:
                model = timm.create_model(architecture, pretrained=True).eval()
            except Exception as error:  # without a network, downloaders raise all kinds of errors
                raise InputError(f"can't get the official weights of {architecture}: {error}") from None
            config = timm.data.resolve_model_data_config(model)
            yield name, "trained", model, held_out_images(settings, 64, config | {"size": config["input_size"]})
        return
    runs = runs_of(settings, MODELS, "model", seeds=1, recipe=PYRAMID)
    if not settings.quick:
        train(settings, runs, weights=True)
    images = held_out_images(settings, 4 if settings.quick else 64, CIFAR10)
    for run, (name, overrides) in zip(runs, MODELS.items(), strict=True):
        torch.manual_seed(0)
        recipe = load_recipe("ablation", overrides)
        yield name, "random", timm.create_model(recipe.model.name, **recipe.model.args).eval(), images
        if not settings.quick:
            yield name, "trained", load_weights(weights_of(run, settings.work)).model, images


class Distances(NamedTuple):
    """What was drawn from a model."""

    by_kind: dict[
        str, list[tuple[str, Tensor]]
    ]  # name of each layer, and distances over the median of the head, (h, p)
    images: list[Tensor]  # (p,) for each layer: which image a pair comes from; of Swin, which window


@torch.no_grad()
def distances(model: nn.Module, images: Tensor) -> Distances:
    """Random pairs of every layer."""
    found: dict[str, list[tuple[str, Tensor]]] = {distance: [] for distance in DISTANCES}
    pairs: dict[str, list[tuple[Tensor, Tensor]]] = {}  # by layer, of each batch: which image, and query minus key
    generator = torch.Generator().manual_seed(0)
    for batch in images.split(BATCH_SIZE):
        with queries_and_keys(model) as seen:
            model(batch)
        for name, q, k in seen:
            drawn = pairs.setdefault(name, [])
            size = (PAIRS * len(batch) // len(images),)
            image, query, key = (
                torch.randint(0, count, size, generator=generator) for count in (q.shape[0], q.shape[2], k.shape[2])
            )
            apart = (q.movedim(1, 0)[:, image, query] - k.movedim(1, 0)[:, image, key]).double()
            drawn.append((image + len(drawn) * BATCH_SIZE * (len(q) // len(batch)), apart))
    for name, drawn in pairs.items():
        apart = torch.cat([each for _, each in drawn], 1)
        squares = apart.square().sum(-1)
        for distance, values in zip(DISTANCES, (apart.abs().sum(-1), squares, squares.sqrt()), strict=True):
            found[distance].append((name, values / values.median(-1, keepdim=True).values))
    return Distances(found, [torch.cat([image for image, _ in drawn]) for drawn in pairs.values()])


def tails(values_hp: Tensor) -> Row:
    """How heavy the tail of (heads, pairs) distances is, averaged over heads."""
    centred = values_hp - values_hp.mean(-1, keepdim=True)
    variance = centred.square().mean(-1)
    low, high = values_hp.quantile(torch.tensor([0.25, 0.75], dtype=values_hp.dtype), dim=-1)
    outliers = values_hp > (high + 3 * (high - low))[:, None]
    numbers = {
        "excess_kurtosis": centred.pow(4).mean(-1) / variance.square() - 3,
        "outliers": outliers.double().mean(-1),
        "variation": variance.sqrt() / values_hp.mean(-1),
    }
    return {name: float(f"{float(number.mean()):.5g}") for name, number in numbers.items()}


def _mean_of(rows: Sequence[Row], distance: str, weights: str, what: str) -> float:
    found = [row[what] for row in rows if (row["distance"], row["weights"]) == (distance, weights)]
    return sum(found) / len(found)


def judge(rows: Sequence[Row]) -> Outcome:
    states = list(dict.fromkeys(row["weights"] for row in rows))
    said = [
        f"{weights} weights: "
        + ", ".join(
            f"{distance} {_mean_of(rows, distance, weights, 'excess_kurtosis'):.2f}, "
            f"{_mean_of(rows, distance, weights, 'outliers'):.2%}, {_mean_of(rows, distance, weights, 'variation'):.2f}"
            for distance in DISTANCES
        )
        for weights in states
    ]
    measured = (
        "excess kurtosis, fraction of outliers, and standard deviation over mean, averaged over layers and models: "
        f"{'; '.join(said)}."
    )
    if "trained" not in states:
        return Outcome(measured, "not confirmed at this scale")
    measured += " The row l2, which is not squared, shows how much is due to squaring alone."
    heavier = [
        _mean_of(rows, "l2 squared", "trained", what) > _mean_of(rows, "l1", "trained", what)
        for what in ("excess_kurtosis", "outliers", "variation")
    ]
    heavy = _mean_of(rows, "l2 squared", "trained", "excess_kurtosis") > HEAVY
    return Outcome(measured, "agrees" if all(heavier) and heavy else "agrees in part" if any(heavier) else "disagrees")


def draw(samples: dict[tuple[str, str], Tensor], path: Path) -> None:
    """The density of each distance over its median, on a logarithmic axis, which shows the tails."""
    names = sorted(dict.fromkeys(name for name, _ in samples), key=lambda name: name.rpartition(", ")[2])
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    drawn = new_figure(9, 0.9 + 2.4 * lines)
    panels = drawn.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    bins = torch.linspace(0, 6, 61, dtype=torch.float64)
    for axis, name in zip(panels.flat, names, strict=False):
        for style, distance in zip(STYLES, DISTANCES, strict=False):
            values = samples[name, distance]
            density = torch.histc(values, 60, 0, 6) / (len(values) * 0.1)
            shown = {key: value for key, value in style.items() if key != "marker"}
            axis.plot(0.5 * (bins[1:] + bins[:-1]), density.clamp(min=1e-7), **shown, label=distance)
        axis.set(yscale="log", ylim=(1e-5, 20))
        axis.set_title(name, fontsize=10)
        tidy(axis, x="distance over its median", y="density")
        axis.label_outer()
    drawn.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    save(drawn, path)
