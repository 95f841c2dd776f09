"""Whether different queries get different attention weights: pairs of rows of the attention matrix, in float64.

Queries are random, collinear (multiples of a few directions, which homogeneous feature maps can't tell apart),
collinear in the features of elu + 1, or those of a model's second stage. The separation of two rows is their distance
over the median distance of all pairs; two rows with a separation below 1e-12 are equal up to rounding: they collide.
The rank counts singular values above 1e-10 of the largest; the effective rank is the exponential of their entropy.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from laplacianformer._util.errors import InputError
from laplacianformer.attention import ATTENTIONS, GridAttention
from laplacianformer.experiments.drawing import STYLES, tidy
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.inputs import held_out_images, queries_and_keys, trained_nano
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.experiments.spectra import effective_rank
from laplacianformer.plots._figure import new_figure, save

SOURCE: str = "appendix, injectivity of z"
CLAIM: str = (
    "The map z of the Laplacian kernel is injective: distinct queries get distinct outputs, as with softmax attention, "
    "while linear attention may confuse them."
)
SIDE, WIDTH = 8, 32
COLLISION, ZERO = 1e-12, 1e-10
LAPLACIAN = {"rope": False, "whitening": "instance"}
METHODS: dict[str, tuple[str, dict[str, object]]] = {
    "Laplacian, exact": ("ablation", LAPLACIAN | {"grid": None}),
    "Laplacian, 16 landmarks": ("ablation", LAPLACIAN | {"grid": 4}),
    "softmax": ("softmax", {"rope": False}),
    "InLine": ("inline", {"rope": False}),
    "linear (elu + 1)": ("linear", {"rope": False}),
    "cosFormer": ("cosformer", {"rope": False}),
    "Performer": ("performer", {"rope": False}),
    "Hedgehog": ("hedgehog", {"rope": False}),
}
LINEAR = "linear (elu + 1)"  # cosFormer's features collide too, but its weights also depend on the position


def run(settings: Settings) -> Outcome:
    rows = [row for name, points in _cases(settings).items() for row in _measure(name, *points)]
    write_rows(settings.results / "separation.csv", rows)
    _draw(rows, settings.results / "injectivity.png")
    return judge(rows)


def _cases(settings: Settings) -> dict[str, tuple[Tensor, Tensor]]:
    """Queries and keys, (heads, N, d) each."""
    generator = torch.Generator().manual_seed(0)
    heads, count = (1, SIDE**2) if settings.quick else (8, SIDE**2)
    k, random = torch.randn(2, heads, count, WIDTH, generator=generator, dtype=torch.float64)
    directions = random[:, : count // 4]
    lengths = torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=torch.float64)[:, None, None, None]
    multiples = (lengths * directions).transpose(0, 1).flatten(1, 2)
    shifted = (lengths * (directions.abs() + 1) - 1).transpose(0, 1).flatten(1, 2)
    model, preprocessing, what = trained_nano(settings)
    images = held_out_images(settings, 2 if settings.quick else 8, preprocessing).double()
    with queries_and_keys(model.double()) as seen, torch.no_grad():
        model(images)
    # The second stage has 8 x 8 tokens.
    layers = [(q, key) for name, q, key in seen if q.shape[2] == count]
    if not layers:
        raise InputError(f"{what}: expected a model with {SIDE} x {SIDE} tokens in a stage, as laplacianformer_nano")
    q, key = (torch.cat([pair[part].flatten(0, 1) for pair in layers]) for part in (0, 1))
    found = {"random": (random, k), "collinear": (multiples, k), "collinear in elu + 1": (shifted, k)}
    return found | {f"of {what.split()[0]} weights" if what.startswith("random") else "trained": (q, key)}


@torch.no_grad()
def _measure(case: str, q_hnd: Tensor, k_hnd: Tensor) -> list[Row]:
    rows = []
    for method, (name, options) in METHODS.items():
        layer: GridAttention = ATTENTIONS[name](q_hnd.shape[-1], 1, **options).double()  # type: ignore[arg-type]
        identity = torch.eye(k_hnd.shape[1], dtype=torch.float64).expand(len(k_hnd), 1, -1, -1)
        weights = layer.mix(q_hnd[:, None], k_hnd[:, None], identity, (SIDE, SIDE))[:, 0]
        rows.append({"queries": case, "method": method} | compared(weights, q_hnd))
    return rows


def compared(weights_hnn: Tensor, q_hnd: Tensor) -> Row:
    """Over all heads: pairs that collide, the smallest separation, and mean ranks. Equal queries are not a pair."""
    count = weights_hnn.shape[1]
    upper = torch.triu(torch.ones(count, count, dtype=torch.bool), 1)
    apart = torch.cdist(weights_hnn, weights_hnn, compute_mode="donot_use_mm_for_euclid_dist")[:, upper]
    different = torch.cdist(q_hnd, q_hnd, p=1)[:, upper] > 0
    separation = torch.where(different, apart / apart.median(-1, keepdim=True).values, torch.inf)
    singular = torch.linalg.svdvals(weights_hnn)
    return {
        "collisions": int((separation < COLLISION).sum()),
        "pairs": int(different.sum()),
        "separation": float(f"{float(separation.min()):.4g}"),
        "rank": round(float((singular > ZERO * singular[:, :1]).sum(-1).double().mean()), 2),
        "effective_rank": round(float(effective_rank(singular).mean()), 2),
    }


def judge(rows: Sequence[Row]) -> Outcome:
    def total(method: str) -> int:
        return sum(row["collisions"] for row in rows if row["method"] == method)

    def ranks(case: str) -> str:
        return ", ".join(f"{row['method']} {row['rank']:.0f}" for row in rows if row["queries"] == case)

    def smallest(start: str) -> float:
        return min(row["separation"] for row in rows if row["method"].startswith(start))

    last = rows[-1]["queries"]
    listed = ", ".join(f"{method} {total(method)}" for method in METHODS)
    measured = (
        f"pairs of different queries with the same weights, over all kinds of queries: {listed}. The smallest "
        f"separation, over the median, is {smallest('Laplacian'):.1e} for the Laplacian map and "
        f"{smallest('softmax'):.1e} for softmax. Rank of the {SIDE**2} x {SIDE**2} matrix ({last}): {ranks(last)}."
    )
    if total("Laplacian, exact") + total("Laplacian, 16 landmarks"):
        return Outcome(measured, "disagrees")
    return Outcome(measured, "agrees" if total(LINEAR) else "agrees in part")


def _draw(rows: Sequence[Row], path: Path) -> None:
    """The smallest separation and the effective rank for every method and kind of queries."""
    drawn = new_figure(9, 4)
    kinds = list(dict.fromkeys(row["queries"] for row in rows))
    left, right = drawn.subplots(1, 2, sharey=True)
    for style, kind in zip(STYLES, kinds, strict=False):
        found = [row for row in rows if row["queries"] == kind]
        y = range(len(found))
        shown = style | {"linestyle": "none"}
        left.plot([max(row["separation"], 1e-17) for row in found], y, **shown, label=kind)
        right.plot([row["effective_rank"] for row in found], y, **shown)
    left.axvline(COLLISION, color="#888888", linewidth=0.8, linestyle=":")
    left.set(xscale="log")
    left.set_yticks(range(len(METHODS)), list(METHODS))
    left.invert_yaxis()
    tidy(left, x="smallest separation of two rows, over the median", y="")
    tidy(right, x=f"effective rank of the {SIDE**2} x {SIDE**2} matrix", y="")
    drawn.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, title="queries")
    save(drawn, path)
