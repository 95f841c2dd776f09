"""Write docs/reproduction.md: every experiment with its plot, claim and verdict, from what is in results/.

python docs/reproduction.py
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from laplacianformer._util.files import replacing
from laplacianformer.experiments.frame import EXPERIMENTS
from laplacianformer.experiments.rows import read_rows
from laplacianformer.experiments.statistics import summary

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reproduction.md"
RESULTS = ROOT / "results" / "experiments"
CONVERSION = ROOT / "results" / "benchmarks" / "conversion" / "accuracy.csv"
# Rows of that table about one setting of the layer, by their name on the page.
CONVERTED = {"grid 7": "laplacian", "directions": "laplacian, lambda fixed"}
# Experiments that look at the same claim elsewhere: a verdict is read with theirs.
ELSEWHERE = {"qk-distances": "trained-distances"}
HEAD = """# The paper's figures and tables, reproduced

For readers of the paper: what it claims, what was measured here, and whether the two agree. This page is written by
`python docs/reproduction.py` from the folders in `results/experiments/`; do not edit it. Each experiment is one
command, which writes its numbers (CSV), its plot and its verdict (`verdict.json`, with commit, machine and date) to
`results/experiments/NAME/`; all trainings are in one table,
[runs.csv](../results/experiments/trainings/runs.csv).

Accuracies here are those of small models after short trainings, every variant with the same seeds, not the paper's.
They can confirm or contradict a claim only as far as it should hold at any scale. "Not confirmed at this
scale" means that the difference is within the noise, or that nothing was measured that could decide. Numbers "reported
by the paper" were not measured here.

In a small pyramid, convolutions and pooling do the mixing, and attention hardly matters ([measured](paper.md)). So
accuracies are compared where attention is all that mixes tokens and each token has an answer of its own: half of the
pixels of a small grey image of CIFAR-10 are hidden, and an encoder says how bright each of them is
([probe-inpaint.yaml](../src/laplacianformer/recipes/probe-inpaint.yaml)). Two controls say what attention is worth: "no
mixing", where every token keeps its own value, and "mean over queries", where the output of the attention is averaged
over the queries. Where attention is worth less than 2 points over the better of them, the verdict is "attention does
not matter here". `attention` also has the same controls in a plain vision transformer that classifies images
([probe.yaml](../src/laplacianformer/recipes/probe.yaml)). Four experiments take other models: `recall` an encoder on
associative recall, `long-range` encoders with a convolution beside the attention, `gain-in-depth` and `cifar100`
pyramids. A comparison of accuracies below that does not say what attention is worth was made on the pyramid
([ablation.yaml](../src/laplacianformer/recipes/ablation.yaml)), before there were probes; those with SOFT++ also before
it followed its authors' code.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="folder of results (default: results/experiments)"
    )
    parser.add_argument("--page", type=Path, default=PAGE, help="file to write (default: docs/reproduction.md)")
    arguments = parser.parse_args()
    with replacing(arguments.page) as file:
        file.write(text(arguments.results, arguments.page.parent).encode())
    print(f"{arguments.page}: {len(verdicts(arguments.results))} of {len(EXPERIMENTS)} experiments")


def verdicts(results: Path) -> dict[str, dict[str, Any]]:
    """The verdict of each experiment that was run, in the order of the list."""
    files = {name: results / name / "verdict.json" for name in EXPERIMENTS}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def text(results: Path, folder: Path) -> str:
    """The page. Its links to the results are relative to `folder`."""
    found = verdicts(results)
    table = ["| experiment | in the paper | verdict |", "|---|---|---|"]
    for name in EXPERIMENTS:
        if name in found:
            other = ELSEWHERE.get(name)
            beside = f"; [{other}](#{other}): {found[other]['verdict']}" if other in found else ""
            table.append(f"| [{name}](#{name}) | {found[name]['source']} | **{found[name]['verdict']}**{beside} |")
        else:
            table.append(f"| {name} |  | not run yet |")
    sections = [_section(name, found, results, folder) for name in found]
    return "\n".join([HEAD, *table, *sections, _converted(CONVERSION, folder)]) + "\n"


def _converted(file: Path, folder: Path) -> str:
    """The kernels and controls in a vision transformer that was trained with softmax attention."""
    rows = [row for row in read_rows(file) if row["question"] in ("kernels", "controls") or row["setting"] in CONVERTED]
    by_name: dict[str, list[float]] = {}
    for row in rows:
        by_name.setdefault(CONVERTED.get(row["setting"], row["setting"]), []).append(float(row["top1"]))
    lines = ["| in the place of softmax attention | seeds | top-1, % |", "|---|---|---|"]
    for name in sorted(by_name, key=lambda name: -summary(by_name[name]).mean):
        found = summary(by_name[name])
        spread = f" ± {found.deviation:.1f}" if len(by_name[name]) > 1 else ""
        lines.append(f"| {name} | {len(by_name[name])} | {found.mean:.1f}{spread} |")
    link, last, table = Path(os.path.relpath(file, folder)).as_posix(), rows[-1], "\n".join(lines)
    return f"""
## A second vehicle: kernels in a converted model

The same kernels and controls in `vit_tiny_patch16_224` on real images: each takes the place of softmax attention in all
layers and is trained for {last["match_images"]} images to match them and {last["distil_images"]} to imitate the whole
model, whose top-1 is {last["teacher_top1"]} %. Deviations are over seeds, where there are several; one seed decides
nothing by itself. A teacher that was trained with dot products favours kernels that are functions of them
([Which kernel imitates softmax best](paper.md#which-kernel-imitates-softmax-best)).

{table}

`python benchmarks/conversion_accuracy.py MODEL --data DIR`: [numbers]({link}), commit {last["commit"][:12]},
{last["date"]}, {last["machine"]}."""


def _section(name: str, found: dict[str, dict[str, Any]], results: Path, folder: Path) -> str:
    verdict, other = found[name], ELSEWHERE.get(name)
    elsewhere = ""
    if other in found:
        said = f"[{other}](#{other}) asks the same of weights that were not trained here: {found[other]['verdict']}"
        elsewhere = f"\n- **Elsewhere**: {said}"
    commit = verdict["commit"].removesuffix("+")[:12]
    path = Path(os.path.relpath(results, folder)).as_posix()
    # Experiments that only train have no numbers of their own.
    _, _, _, *options = verdict["command"].split()  # of a run whose experiment may have had another name
    command = " ".join(["laplacianformer", "reproduce", name, *options])
    numbers = f"{path}/{name}" if list((results / name).glob("*.csv")) else f"{path}/trainings/runs.csv"
    return f"""
## {name}

{EXPERIMENTS[name][0].upper()}{EXPERIMENTS[name][1:]}.

- **Claim** ({verdict["source"]}): {verdict["claim"]}
- **Measured**: {verdict["measured"]}
- **Verdict**: {verdict["verdict"]}{elsewhere}

![{name}]({path}/{name}/{name}.png)

`{command}`: [numbers]({numbers}), commit {commit}, {verdict["date"]}, {verdict["machine"]}."""


if __name__ == "__main__":
    main()
