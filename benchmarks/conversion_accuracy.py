"""What a conversion is worth: accuracy by landmarks, converted layers, images seen and what layers learn, and controls.

    python benchmarks/conversion_accuracy.py vit_tiny_patch16_224 --data DIR
    python benchmarks/conversion_accuracy.py vit_tiny_patch16_224 --weights FILE --data DIR data.crop_pct=1.0

Writes results/benchmarks/conversion/accuracy.csv, one row per conversion, after each one, and accuracy.png; rows that
are there are not made again. Checkpoints are in --runs: a run that was stopped continues.
"""

import argparse
import json
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
LEARN = ("low-rank", "scales")  # the default is all
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
    draw([row for row in rows if str(row["seed"]) == str(arguments.seed)], file.with_suffix(".png"))
    show(rows)


def variants(only: str | None) -> Iterator[tuple[str, str, list[str]]]:
    """Question, setting, and what it changes."""
    found: list[tuple[str, str, list[str]]] = [
        ("default", "grid 7", []),
        *(("controls", name, _attention(*given)) for name, given in CONTROLS.items()),
        *(("kernels", name, _attention("ablation", {**GRID, "kernel": name})) for name in KERNELS),
        *(("learn", learn, [f"convert.learn={learn}"]) for learn in LEARN),
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
    folder = arguments.runs / f"{question}-{setting.replace(' ', '-')}-{arguments.seed}"
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
            height = float(rows[0]["teacher_top1"]) if name == "teacher" else float(found[0]) if found else None
            if height is not None:
                axis.axhline(height, color="0.4", linestyle=style, label=name)
        axis.legend(frameon=False, fontsize=8)
    save(figure, path)


def curve(axis: Any, rows: list[Row], questions: dict[str, Callable[[str], int]]) -> None:
    found = [
        (questions[str(r["question"])](str(r["setting"])), float(r["top1"])) for r in rows if r["question"] in questions
    ]
    axis.plot(*zip(*sorted(found), strict=True), **STYLES[0], markersize=5)


def bars(axis: Any, questions: dict[str, str], rows: list[Row], label: str) -> None:
    """One bar per name; the value is that of the row of its question, and of its setting if the question has many."""
    found = {}
    for name, question in questions.items():
        of_one = [
            r for r in rows if r["question"] == question and (question == "default" or name.endswith(str(r["setting"])))
        ]
        if of_one:
            found[name] = float(of_one[0]["top1"])
    names = sorted(found, key=lambda name: found[name])
    axis.barh(names, [found[name] for name in names], color=STYLES[0]["color"], alpha=0.8)
    for name in names:
        axis.text(found[name] + 1, name, f"{found[name]:.1f}", va="center", fontsize=8)
    axis.axvline(float(rows[0]["teacher_top1"]), color="0.4", linestyle="--")
    tidy(axis, x="top-1, %", y=label)


if __name__ == "__main__":
    main()
