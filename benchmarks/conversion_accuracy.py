"""What a conversion is worth: accuracy by landmarks, converted layers, images seen and what layers learn, and controls.

    python benchmarks/conversion_accuracy.py vit_tiny_patch16_224 --data DIR
    python benchmarks/conversion_accuracy.py vit_tiny_patch16_224 --weights FILE --classes FILE --data DIR --seed 1

Writes results/benchmarks/conversion/accuracy.csv, one row per conversion with the overrides that were given, after each
one, and accuracy.png, of all seeds; rows that are there are not made again. Checkpoints are in --runs: a run that was
stopped continues. Labels count only where the names of the outputs are right: without --classes they are those of the
folders in alphabetical order.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from comparing import RESULTS, parser_of, progress, show

from laplacianformer._util.provenance import provenance
from laplacianformer.convert import ConvertRecipe, Result, load_recipe, train
from laplacianformer.convert._teacher import stated_input
from laplacianformer.experiments.drawing import STYLES, tidy
from laplacianformer.experiments.rows import Row, read_rows, write_rows
from laplacianformer.experiments.statistics import summary
from laplacianformer.plots._figure import new_figure, save

BUDGET = 1600  # images of each phase
GRID: dict[str, Any] = {"grid": 7, "gain": "learned"}  # what the recipe says
LANDMARKS = (5, 10, 14)
LAYERS = ("0-5", "6-11", "0-8", "3-11")
IMAGES = (400, 800, 3200)
CONTROLS: dict[str, tuple[str, dict[str, Any]]] = {
    "mean over queries": ("mean-over-queries", GRID),
    "no mixing": ("no-mixing", {}),
    "linear attention": ("linear", {}),
    "inline": ("inline", {}),
}
AUTO = {"grid": 7, "gain": "auto"}  # sqrt(m), which stays; lambda alone is learned, in the projections or as a factor
LEARN: dict[str, tuple[str, dict[str, Any]]] = {  # the default is all, with the gain learned
    "low-rank": ("low-rank", GRID),
    "scales": ("scales", GRID),
    "directions": ("directions", GRID),  # all, with lambda fixed as calibrated
    "all, gain fixed": ("all", AUTO),
    "scales, gain fixed": ("scales", AUTO),
    "directions, gain fixed": ("directions", AUTO),
}
KERNELS = ("gaussian", "matern", "cosine", "polynomial")  # in the same layer
QUESTIONS = ("default", "controls", "kernels", "learn", "landmarks", "layers", "images")


def main() -> None:
    parser = parser_of(__doc__, RESULTS / "conversion")
    parser.add_argument("model", metavar="MODEL", help="a name of timm")
    parser.add_argument("--weights", help="its tensors (default: those of timm's hub)")
    parser.add_argument("--classes", help="JSON with the names of its outputs")
    parser.add_argument("--data", required=True, metavar="DIR", help="folder with train and val")
    parser.add_argument("--runs", type=Path, default=Path("runs/conversion"), help="folder (default: %(default)s)")
    parser.add_argument("--only", choices=QUESTIONS, help="one question")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="of the recipe, in all conversions")
    arguments = parser.parse_intermixed_args()  # overrides may follow options
    torch.set_num_threads(arguments.threads)
    file = arguments.output / "accuracy.csv"
    rows = list(read_rows(file)) if file.exists() else []
    for question, setting, overrides in progress(variants(arguments.only), "conversions"):
        key = {"question": question, "setting": setting, "seed": str(arguments.seed)}
        if any(all(str(row[name]) == value for name, value in key.items()) for row in rows):
            continue
        rows.append(key | measured(arguments, question, setting, overrides) | provenance(threads=arguments.threads))
        write_rows(file, rows)
    draw(summed_up(rows), file.with_suffix(".png"))
    show([{name: row.get(name, "") for name in rows[-1]} for row in rows])


def summed_up(rows: list[Row]) -> list[Row]:
    """One row per setting: mean and standard deviation over its seeds of the accuracies."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((str(row["question"]), str(row["setting"])), []).append(row)
    summed: list[Row] = []
    for (question, setting), of_one in found.items():
        top1 = summary([float(row["top1"]) for row in of_one])
        teacher = summary([float(row["teacher_top1"]) for row in of_one])
        numbers = {"top1": top1.mean, "deviation": top1.deviation, "teacher_top1": teacher.mean, "seeds": len(of_one)}
        summed.append({"question": question, "setting": setting, **numbers})
    return summed


def variants(only: str | None) -> Iterator[tuple[str, str, list[str]]]:
    """Question, setting, and what it changes."""
    found: list[tuple[str, str, list[str]]] = [
        ("default", "grid 7", []),
        *(("controls", name, _attention(*given)) for name, given in CONTROLS.items()),
        *(("kernels", name, _attention("ablation", {**GRID, "kernel": name})) for name in KERNELS),
        *(
            ("learn", name, [f"convert.learn={learn}", f"convert.attention_args={json.dumps(options)}"])
            for name, (learn, options) in LEARN.items()
        ),
        *(("landmarks", f"grid {grid}", [f"convert.attention_args.grid={grid}"]) for grid in LANDMARKS),
        *(("layers", layers, [f"convert.layers={_numbers(layers)}"]) for layers in LAYERS),
        *(("images", str(count), _budget(count)) for count in IMAGES),
    ]
    return (variant for variant in found if only in (None, variant[0]))


def _attention(attention: str, options: dict[str, Any]) -> list[str]:
    return [f"convert.attention={attention}", f"convert.attention_args={json.dumps(options)}"]


def _numbers(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last) + 1))


def _budget(images: int) -> list[str]:
    return [f"convert.match_samples={images}", f"data.train_samples={images}"]


def measured(arguments: argparse.Namespace, question: str, setting: str, overrides: Sequence[str]) -> Row:
    begin = time.monotonic()
    folder = arguments.runs / f"{question}-{setting.replace(',', '').replace(' ', '-')}-{arguments.seed}"
    recipe = recipe_of(arguments, overrides)
    result: Result = train(recipe, folder, resume=True)
    errors = [row["loss"] for row in read_rows(folder / "match" / "metrics.csv")]
    return {
        "match_images": recipe.convert.match_samples,
        "distil_images": recipe.data.train_samples,
        "error": round(float(errors[-1]), 4),
        "matched_top1": _after_match(folder),
        "top1": round(100 * result.accuracy, 2),
        "teacher_top1": round(100 * result.teacher_accuracy, 2),
        "agreement": round(100 * result.agreement, 2),
        "seconds": round(time.monotonic() - begin),
        "overrides": " ".join(arguments.overrides),
    }


def _after_match(folder: Path) -> float:
    found = [row["validation_accuracy"] for row in read_rows(folder / "match" / "metrics.csv")]
    return round(100 * float([value for value in found if value != ""][-1]), 2)


def recipe_of(arguments: argparse.Namespace, overrides: Sequence[str]) -> ConvertRecipe:
    said = {"teacher.name": arguments.model, "teacher.weights": arguments.weights, "teacher.classes": arguments.classes}
    said |= {f"data.{key}": value for key, value in stated_input(arguments.model).items()}
    said |= {"data.root": arguments.data, "run.seed": arguments.seed, "run.tensorboard": False}
    given = [f"{key}={json.dumps(value)}" for key, value in said.items() if value is not None]
    return load_recipe(
        "convert-vit", [*given, "distil.epochs=1", "match.epochs=1", *_budget(BUDGET), *arguments.overrides, *overrides]
    )


def draw(rows: list[Row], path: Path) -> None:
    """Accuracy by landmarks, converted layers and images, and of everything else in the order of its accuracy."""
    figure = new_figure(9, 6.5)
    landmarks, layers, images, others = figure.subplots(2, 2).flat
    curve(landmarks, rows, {"default": lambda _: 49, "landmarks": lambda name: int(name.split()[1]) ** 2})
    tidy(landmarks, x="landmarks, without the class token", y="top-1, %")
    curve(images, rows, {"default": lambda _: BUDGET, "images": int})
    tidy(images, x="images of each phase", y="top-1, %")
    images.set_xscale("log", base=2)
    images.set_xticks(sorted((*IMAGES, BUDGET)), labels=map(str, sorted((*IMAGES, BUDGET))))
    bars(layers, {"all": "default", **dict.fromkeys(LAYERS, "layers")}, rows, "converted layers")
    names = {"laplacian": "default", **dict.fromkeys(KERNELS, "kernels"), **dict.fromkeys(CONTROLS, "controls")}
    bars(others, names | {f"laplacian, {each}": "learn" for each in LEARN}, rows, "")
    for axis in (landmarks, images):
        for name, style in (("teacher", "--"), ("mean over queries", ":")):
            found = [row["teacher_top1" if name == "teacher" else "top1"] for row in rows if row["setting"] == name]
            height = rows[0]["teacher_top1"] if name == "teacher" else found[0] if found else None
            if height is not None:
                axis.axhline(height, color="0.4", linestyle=style, label=name)
        axis.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 0.06))  # between its two lines
    if (most := max(row["seeds"] for row in rows)) > 1:
        figure.suptitle(f"mean and standard deviation, up to {most} seeds", fontsize=9)
    save(figure, path)


def curve(axis: Any, rows: list[Row], questions: dict[str, Callable[[str], int]]) -> None:
    found = [(questions[r["question"]](r["setting"]), r["top1"], _error(r)) for r in rows if r["question"] in questions]
    x, heights, errors = zip(*sorted(found), strict=True)
    axis.errorbar(x, heights, yerr=errors, **STYLES[0], markersize=5, capsize=2)


def _error(row: Row) -> float:
    """The deviation over seeds, for its bar; none of a single one."""
    return 0.0 if math.isnan(row["deviation"]) else row["deviation"]


def bars(axis: Any, questions: dict[str, str], rows: list[Row], label: str) -> None:
    """One bar per name; the value is that of the row of its question, and of its setting if the question has many."""
    found: dict[str, Row] = {}
    for name, question in questions.items():
        setting = name.removeprefix("laplacian, ")
        of_one = [r for r in rows if r["question"] == question and (question == "default" or setting == r["setting"])]
        if of_one:
            found[name] = of_one[0]
    names = sorted(found, key=lambda name: found[name]["top1"])
    heights = [found[name]["top1"] for name in names]
    errors = [_error(found[name]) for name in names]
    axis.barh(names, heights, xerr=errors, color=STYLES[0]["color"], alpha=0.8)
    for name, height, error in zip(names, heights, errors, strict=True):
        axis.text(height + error + 1, name, f"{height:.1f}", va="center", fontsize=8)
    axis.axvline(rows[0]["teacher_top1"], color="0.4", linestyle="--")
    tidy(axis, x="top-1, %", y=label)


if __name__ == "__main__":
    main()
