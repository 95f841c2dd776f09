"""The attention matrix of the first block and its singular values, by kernel and by lambda.

Without CIFAR-10, this looks into one model (--weights, or the weights in the package), whose kernel and lambda are
replaced after training and whose features are whitened per image. With --cifar10, it looks into small pyramids that
were trained with each kernel and each lambda. The effective rank is the exponential of the entropy of the singular
values; means over heads, differences paired by image.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from laplacianformer._util.settings import entries
from laplacianformer.attention import AblationAttention, GridAttention, LaplacianAttention
from laplacianformer.experiments.drawing import STYLES, tidy
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.inputs import held_out_images, trained_nano
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.experiments.scale import SCALES as TRAINED_SCALES
from laplacianformer.experiments.spectra import effective_rank
from laplacianformer.experiments.statistics import paired
from laplacianformer.experiments.sweep import weights_of
from laplacianformer.experiments.trainings import (
    DEFAULT,
    PYRAMID,
    Variants,
    other_mixer,
    runs_of,
    train,
    with_arguments,
)
from laplacianformer.ops._pooling import Size
from laplacianformer.plots._figure import new_figure, save
from laplacianformer.weights import load_weights

SOURCE: str = "Figure 2b and the figure of lambda"
CLAIM: str = (
    "With a Laplacian kernel, attention maps of the first block are more structured and have better conditioned rank "
    "profiles than with a Gaussian kernel; a small lambda makes them sparse, a large one smooth."
)
Kernel = Literal["laplacian", "gaussian"]
KERNELS: tuple[Kernel, ...] = ("laplacian", "gaussian")
SCALES = (0.5, 1.0, 2.0, 4.0, 8.0)
# averaged: the mean of the values instead of their sum (docs/baselines.md).
TRAINED_KERNELS: Variants = {
    **{
        f"{model}, {kernel}": other_mixer(mixer, f"{{kernel: {kernel}, grid: 4, averaged: true}}")
        for model, mixer in (("SOFT++", "soft++"), ("Skyformer", "skyformer"))
        for kernel in KERNELS
    },
    "LaplacianFormer, laplacian": DEFAULT,
    "LaplacianFormer, gaussian": with_arguments(kernel="gaussian"),
}
Models = dict[str, nn.Module]


def run(settings: Settings) -> Outcome:
    kernels, scales, preprocessing, what = _models(settings)
    images = held_out_images(settings, 2 if settings.quick else 8, preprocessing).double()
    maps = {name: matrices(model, images) for name, model in (kernels | scales).items()}
    rows, curves = [], []
    for name, map_bhnn in maps.items():
        singular = torch.linalg.svdvals(map_bhnn)
        ranks = effective_rank(singular).mean(1).tolist()
        rows += [{"model": name, "image": image, "effective_rank": round(rank, 4)} for image, rank in enumerate(ranks)]
        profile = (singular / singular[..., :1]).mean((0, 1)).tolist()
        curves += [
            {"model": name, "number": number + 1, "value": float(f"{v:.5g}")} for number, v in enumerate(profile)
        ]
    write_rows(settings.results / "ranks.csv", rows)
    write_rows(settings.results / "singular-values.csv", curves)
    first = {name: map_bhnn[0, 0] for name, map_bhnn in maps.items()}
    _draw(first, curves, list(kernels), list(scales), settings.results / "attention-maps.png")
    return judge(rows, what)


def _models(settings: Settings) -> tuple[Models, Models, dict[str, Any], str]:
    """Models by kernel and by lambda, the preprocessing of their images, and a description."""
    if settings.cifar10 is None or settings.quick:
        model, preprocessing, what = trained_nano(settings)
        kernels = {f"LaplacianFormer, {kernel}": with_kernel(model, kernel, 4.0) for kernel in KERNELS}
        scales = {f"lambda = {scale:g}": with_kernel(model, "laplacian", scale) for scale in SCALES}
        return kernels, scales, preprocessing, f"{what}, kernel and lambda replaced after training"
    lambdas: Variants = {f"lambda = {name}": overrides for name, overrides in TRAINED_SCALES.items()}
    runs = [
        run
        for variants in (TRAINED_KERNELS, lambdas)
        for run in runs_of(settings, variants, "model", seeds=1, recipe=PYRAMID)
    ]
    train(settings, runs, weights=True)
    found = {run.labels["model"]: load_weights(weights_of(run, settings.work)) for run in runs}
    kernels, scales = ({name: found[name].model for name in variants} for variants in (TRAINED_KERNELS, lambdas))
    return kernels, scales, found["lambda = 4"].input, "each trained with its kernel and lambda"


def with_kernel(model: nn.Module, kernel: Kernel, scale: float) -> nn.Module:
    """A copy of the model with the same weights and another kernel, whose features are whitened per image."""
    twin = copy.deepcopy(model)
    for parent in list(twin.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, LaplacianAttention):
                setattr(parent, name, _layer_with_kernel(layer, kernel, scale))
    return twin


def _layer_with_kernel(layer: LaplacianAttention, kernel: Kernel, scale: float) -> AblationAttention:
    # What a layer that is an ablation itself has beyond the default ones.
    options = {name: getattr(layer, name) for name in ("gram", "solver", "ratio", "tied") if hasattr(layer, name)}
    if getattr(layer, "landmark_filter", None) is not None:
        options["landmarks"] = "conv"
    changed = AblationAttention(
        layer.dim,
        layer.num_heads,
        axes=layer.axes,
        prefix=layer.prefix,
        kernel=kernel,
        scale=scale,
        whitening="instance",
        grid=layer.grid if getattr(layer, "fixed_grid", True) else None,
        iterations=layer.iterations,
        eps=layer.eps,
        gain="learned" if isinstance(layer.gain, nn.Parameter) else layer.gain,
        qk_norm=layer.qk_norm is not None,
        rope=layer.rope,
        qkv_bias=layer.qkv.bias is not None,
        **options,
    )
    if layer.dwc is None:  # as in a probe
        changed.dwc = None
    # The running variance, which the whitening per image does not have, stays behind, and so do the settings.
    weights = {name: value for name, value in layer.state_dict().items() if not name.startswith("whitening.")}
    changed.load_state_dict({**weights, **entries(changed.state_dict())})
    return changed.train(layer.training)


@torch.no_grad()
def matrices(model: nn.Module, images: Tensor) -> Tensor:
    """The attention matrices of the first block, (B, heads, N, N), in float64."""
    model = model.double().eval()
    layer = next(layer for layer in model.modules() if isinstance(layer, GridAttention))
    seen: list[tuple[Tensor, Size]] = []
    handle = layer.register_forward_pre_hook(lambda _, given: seen.append(given))
    model(images)
    handle.remove()
    tokens, size = seen[0]
    queries, keys, values = layer.project(tokens, size)
    identity = torch.eye(values.shape[2], dtype=values.dtype).expand(*values.shape[:2], -1, -1)
    return layer.mix(queries, keys, identity, size)


def _ranks_of(rows: Sequence[Row], model: str) -> list[float]:
    return [row["effective_rank"] for row in rows if row["model"] == model]


def judge(rows: Sequence[Row], what: str) -> Outcome:
    names = list(dict.fromkeys(row["model"] for row in rows))
    pairs = [name.removesuffix(", laplacian") for name in names if name.endswith(", laplacian")]
    differences = {
        name: paired(_ranks_of(rows, f"{name}, laplacian"), _ranks_of(rows, f"{name}, gaussian")) for name in pairs
    }

    def mean(name: str) -> str:
        found = _ranks_of(rows, name)
        return f"{name} {sum(found) / len(found):.2f}"

    measured = (
        f"effective rank of the first block's map ({what}): {', '.join(mean(name) for name in names)}. Laplacian minus "
        f"Gaussian, paired by image, 95 % interval: "
        f"{', '.join(f'{name} {difference}' for name, difference in differences.items())}."
    )
    scales = [name for name in names if name.startswith("lambda")]
    if len(scales) > 1:  # a smooth map has a low rank
        key = f"{scales[0]} minus {scales[-1]}"
        differences[key] = paired(_ranks_of(rows, scales[0]), _ranks_of(rows, scales[-1]))
        measured += f" {key}: {differences[key]}."
    up = [difference.clear and difference.mean > 0 for difference in differences.values()]
    down = [difference.clear and difference.mean < 0 for difference in differences.values()]
    if "random" in what or not (any(up) or any(down)):
        return Outcome(measured, "not confirmed at this scale")
    return Outcome(measured, "agrees" if all(up) else "agrees in part" if any(up) else "disagrees")


def _draw(
    maps: dict[str, Tensor], curves: Sequence[Row], kernels: Sequence[str], scales: Sequence[str], path: Path
) -> None:
    """Maps of one image and head, and the mean singular values of all."""
    drawn = new_figure(9, 8.4)
    upper, middle, lower = drawn.subfigures(3, 1, height_ratios=(1.25, 1.1, 2))
    for part, names in ((upper, kernels), (middle, scales)):
        for axis, name in zip(part.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            low, high = maps[name].quantile(torch.tensor([0.02, 0.98], dtype=torch.float64)).tolist()
            axis.imshow(maps[name].numpy(), cmap="cividis", vmin=low, vmax=high, interpolation="nearest")
            axis.set_title(name.replace(", ", "\n"), fontsize=9)
            axis.set(xticks=[], yticks=[])
            axis.set_xlabel("key", fontsize=9)
            axis.set_ylabel("query", fontsize=9)
            axis.label_outer()
    for axis, names in zip(lower.subplots(1, 2, sharey=True), (kernels, scales), strict=True):
        for style, name in zip(STYLES, names, strict=False):
            line = [(row["number"], row["value"]) for row in curves if row["model"] == name and row["value"] > 1e-8]
            axis.plot(*zip(*line, strict=True), **style, markersize=4, markevery=0.1, label=name)
        axis.set(yscale="log", ylim=(1e-8, 2))
        tidy(axis, x="index of the singular value", y="singular value over the largest")
        axis.legend(frameon=False, fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.18))
        axis.label_outer()
    save(drawn, path)
