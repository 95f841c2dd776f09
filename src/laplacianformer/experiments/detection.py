"""Average precision of detectors: what the paper reports on COCO, beside the detection recipes that were run here.

These are found as results/recipes/NAME/scores.json (which a training writes) or run.json with its metrics. --coco
trains the "1x" recipes themselves; --quick trains for a moment on generated shapes.
"""

import json
from pathlib import Path
from typing import Any

from laplacianformer.experiments.drawing import STYLES, tidy
from laplacianformer.experiments.frame import Outcome, Settings
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.experiments.sweep import Training, sweep
from laplacianformer.plots._figure import new_figure, save

SOURCE: str = "Table 2"
CLAIM: str = (
    'With Mask R-CNN and RetinaNet, "1x", on COCO, LaplacianFormer is ahead of other backbones in every size: 43.2, '
    "45.8, 48.0, 48.2 and 42.5, 45.5, 47.2, 48.5 box AP from tiny to large."
)
# As reported by the paper: size, backbone, box AP and mask AP of Mask R-CNN, box AP of RetinaNet.
REPORTED: list[tuple[str, str, float, float, float | None]] = [
    ("tiny", "Swin-T-PRepBN", 42.9, 39.3, None),
    ("tiny", "FL-PVT-T", 38.2, 37.0, None),
    ("tiny", "SOFT++-Tiny", 41.2, 38.2, 41.9),
    ("tiny", "LaplacianFormer-Tiny", 43.2, 40.3, 42.5),
    ("small", "PVT-S-PolaFormer", 43.9, 40.2, 43.2),
    ("small", "InLine-PVT-S", 43.4, 40.1, None),
    ("small", "SOFT++-Small", 43.8, 40.1, 43.7),
    ("small", "LaplacianFormer-Small", 45.8, 42.0, 45.5),
    ("medium", "Agent-PVT-M", 45.9, 42.0, None),
    ("medium", "FL-Swin-M", 44.0, 40.3, None),
    ("medium", "SOFT++-Medium", 46.6, 42.0, 44.3),
    ("medium", "LaplacianFormer-Medium", 48.0, 43.5, 47.2),
    ("large", "Swin-T-PolaFormer", 44.8, 40.5, None),
    ("large", "Agent-PVT-L", 46.9, 42.8, None),
    ("large", "SOFT++-Large", 47.0, 42.2, 47.0),
    ("large", "LaplacianFormer-Large", 48.2, 43.8, 48.5),
]
RECORDED = Path("results/recipes")  # one folder per training
SIZES = ("tiny", "small", "medium", "large")
DETECTORS = {"maskrcnn": (), "retinanet": ("detector.name=retinanet",)}  # overrides of the recipe
QUICK = (
    *("data.shapes_train=8", "data.shapes_val=4", "data.shapes_size=48", "data.short_side=[48]", "data.long_side=64"),
    *("optimise.epochs=1", "optimise.batch_size=4", "run.devices=1", "run.tensorboard=false"),
)
Found = dict[str, dict[str, float]]  # recipe: {"box_ap": ..., "mask_ap": ...} in percent


def run(settings: Settings) -> Outcome:
    found = _trained(settings) if settings.quick or settings.coco else _recorded(RECORDED)
    rows: list[Row] = []
    for size, backbone, box, mask, retinanet in REPORTED:
        reported = {"reported_maskrcnn_box_ap": box, "reported_maskrcnn_mask_ap": mask}
        rows.append({"size": size, "backbone": backbone, **reported, "reported_retinanet_box_ap": retinanet})
    rows += [{"recipe": recipe, **scores} for recipe, scores in found.items()]
    write_rows(settings.results / "precision.csv", rows)
    _draw(found, settings.results / "detection.png")
    return judge(found)


def _trained(settings: Settings) -> Found:
    """The recipes for COCO, one after the other; or, with --quick, a moment of the recipe for shapes."""
    if settings.quick:
        runs = [Training("shapes-maskrcnn", {}, QUICK, 0)]
    else:
        from laplacianformer.detection._recipe import size_overrides  # needs the packages for training

        runs = [
            Training("coco", {"detector": short, "size": size}, (*named, *size_overrides(size)), 0, settings.coco)
            for short, named in DETECTORS.items()
            for size in SIZES
        ]
    rows = sweep(runs, settings.trainings, settings.work, settings.processes or 1, progress=settings.progress)
    found: Found = {}
    for run, row in zip(runs, rows, strict=True):
        scores = {name: float(value) for name, value in row.items() if name.startswith(("box_", "mask_")) and value}
        found["-".join([run.recipe, *run.labels.values()])] = scores
    return found


def _recorded(recipes: Path) -> Found:
    """The scores of the detection recipes that were trained before."""
    found: Found = {}
    for folder in sorted(recipes.glob("*-*/")):
        if (folder / "scores.json").exists():
            scores = json.loads((folder / "scores.json").read_text())
            found[folder.name] = {
                f"{kind}_{key.lower()}": v for kind, part in scores.items() for key, v in part.items()
            }
        elif (folder / "run.json").exists():
            metrics = json.loads((folder / "run.json").read_text()).get("metrics", {})
            found[folder.name] = {key: value for key, value in metrics.items() if key.startswith(("box_", "mask_"))}
    return {recipe: scores for recipe, scores in found.items() if scores.get("box_ap") is not None}


def reported(recipe: str) -> float | None:
    """The box AP that the paper reports for a recipe on COCO."""
    for size, backbone, box, _, retinanet in REPORTED:
        if backbone.startswith("LaplacianFormer") and recipe in (f"coco-maskrcnn-{size}", f"coco-retinanet-{size}"):
            return box if "maskrcnn" in recipe else retinanet
    return None


def judge(found: Found) -> Outcome:
    def said(recipe: str, scores: dict[str, float]) -> str:
        mask = f", mask AP {scores['mask_ap']:.1f}" if scores.get("mask_ap") is not None else ""
        paper = reported(recipe)
        return f"{recipe}: box AP {scores['box_ap']:.1f}{mask}" + (f" (the paper: {paper})" if paper else "")

    listed = "; ".join(said(recipe, scores) for recipe, scores in found.items()) or "no detection recipe was run yet"
    on_coco = {recipe: scores["box_ap"] for recipe, scores in found.items() if reported(recipe) is not None}
    if not on_coco:
        return Outcome(f"{listed}. Nothing was trained on all of COCO here.", "not confirmed at this scale")
    near = [box >= (reported(recipe) or 0) - 1 for recipe, box in on_coco.items()]
    return Outcome(f"{listed}.", "agrees" if all(near) else "agrees in part" if any(near) else "disagrees")


def _draw(found: Found, path: Path) -> None:
    """Reported box AP by size for both detectors, and the runs here."""
    drawn = new_figure(9, 3.8)
    axes = drawn.subplots(1, 3 if found else 2)
    families = {"LaplacianFormer": STYLES[0], "SOFT++": STYLES[1], "others": STYLES[2] | {"linestyle": "none"}}
    for axis, column in zip(axes, (2, 4), strict=False):
        for family, style in families.items():
            own = [row for row in REPORTED if _family(row[1]) == family and row[column] is not None]
            sizes = [SIZES.index(row[0]) for row in own]
            axis.plot(sizes, [row[column] for row in own], **style, markersize=5, label=f"{family}, reported")
        axis.set_xticks(range(len(SIZES)), SIZES)
        axis.set_title(f"{'Mask R-CNN' if column == 2 else 'RetinaNet'} on COCO", fontsize=10)
        tidy(axis, x="size", y="box AP, %")
    axes[0].legend(frameon=False, fontsize=8)
    if found:
        _draw_measured(axes[2], found)
    save(drawn, path)


def _draw_measured(axis: Any, found: Found) -> None:
    for y, scores in enumerate(found.values()):
        for style, kind in zip(STYLES, ("box_ap", "mask_ap"), strict=False):
            if scores.get(kind) is not None:
                label = "_" if y else f"{kind.replace('_ap', '')} AP"
                axis.plot(scores[kind], y, **style | {"linestyle": "none"}, label=label)
    axis.set_yticks(range(len(found)), [recipe.replace("-", "\n", 1) for recipe in found], fontsize=8)
    axis.set(xlim=(0, 100), ylim=(len(found) - 0.5, -0.5))
    axis.set_title("measured here", fontsize=10)
    tidy(axis, x="AP, %", y="")
    axis.legend(frameon=False, fontsize=8)


def _family(backbone: str) -> str:
    return next((family for family in ("LaplacianFormer", "SOFT++") if backbone.startswith(family)), "others")
