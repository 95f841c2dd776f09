"""docs/reproduction.md: every experiment with its plot, claim and verdict, from what lies in the folder of results."""

import json
import os
from pathlib import Path
from typing import Any

from rich.console import Console

from laplacianformer._util.files import replacing
from laplacianformer.experiments.frame import EXPERIMENTS

PAGE = Path("docs/reproduction.md")
HEAD = """# The paper's figures and tables, run again

Made by `laplacianformer reproduce --page` from the folders in `results/`: do not edit. Each experiment is one command,
which writes its numbers (CSV), its plot and its verdict (`verdict.json`, with commit, machine and date) to
`results/NAME/`. Accuracies here are those of small models in short trainings on CIFAR-10
([ablation.yaml](../src/laplacianformer/recipes/ablation.yaml), every variant with the same seeds), not the paper's:
they can confirm or contradict a claim only as far as it should hold at any scale, and "not confirmed at this scale"
says that the difference is inside the noise, or that nothing was measured that could tell. Numbers "reported by the
paper" were not measured here.
"""


def write(results: Path, page: Path = PAGE) -> None:
    with replacing(page) as file:
        file.write(text(results, page.parent).encode())
    Console().print(f"{page}: {len(verdicts(results))} of {len(EXPERIMENTS)} experiments")


def verdicts(results: Path) -> dict[str, dict[str, Any]]:
    """What each experiment that was run has found, in the order of the list."""
    files = {name: results / name / "verdict.json" for name in EXPERIMENTS}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def text(results: Path, folder: Path) -> str:
    """The page as it is in this folder, from which it links to the results."""
    found = verdicts(results)
    place = Path(os.path.relpath(results, folder)).as_posix()
    table = ["| experiment | of the paper | verdict |", "|---|---|---|"]
    for name in EXPERIMENTS:
        verdict = found.get(name)
        said = ("not run yet", "") if verdict is None else (f"**{verdict['verdict']}**", verdict["source"])
        table.append(f"| {f'[{name}](#{name})' if verdict else name} | {said[1]} | {said[0]} |")
    return "\n".join([HEAD, *table, *(_section(name, verdict, place) for name, verdict in found.items())]) + "\n"


def _section(name: str, verdict: dict[str, Any], place: str) -> str:
    commit = verdict["commit"].removesuffix("+")[:12]
    return f"""
## {name}

{EXPERIMENTS[name][0].upper()}{EXPERIMENTS[name][1:]}.

- **Measured**: {verdict["measured"]}
- **Verdict**: {verdict["verdict"]}

![{name}]({place}/{name}/{name}.png)

*Claim ({verdict["source"]}): {verdict["claim"]}*

`{verdict["command"]}`: [numbers]({place}/{name}), commit {commit}, {verdict["date"]}, {verdict["machine"]}."""
