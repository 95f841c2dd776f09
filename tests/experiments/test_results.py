"""The folder results/: explained by its README, without copies, and with pictures only where a page shows them."""

import re
import subprocess
from pathlib import Path

import pytest

from laplacianformer.experiments.frame import EXPERIMENTS
from laplacianformer.experiments.rows import read_rows

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
README = (RESULTS / "README.md").read_text() if RESULTS.exists() else ""
SECTIONS = {part.split("\n")[0].lower(): part for part in README.split("\n## ")[1:]}
WORDS = set(re.findall(r"`([\w.-]+)`", README))
TABLES = sorted(RESULTS.rglob("*.csv"))


def test_the_readme_names_every_folder() -> None:
    """Each kind of result has a folder and a section, which names the folders inside it."""
    kinds = {path.name for path in RESULTS.iterdir() if path.is_dir()}
    assert kinds == {"archive", "benchmarks", "experiments", "recipes"}
    for kind in kinds:
        named = set(re.findall(r"[\w.-]+", SECTIONS[kind]))
        assert {path.name for path in (RESULTS / kind).iterdir()} <= named
    for path in (RESULTS / "benchmarks").rglob("*.csv"):
        assert path.name in SECTIONS["benchmarks"]


def test_a_folder_of_an_experiment_has_the_name_of_its_command() -> None:
    assert {path.name for path in (RESULTS / "experiments").iterdir()} <= {"trainings", *EXPERIMENTS}


@pytest.mark.parametrize("table", TABLES, ids=[str(path.relative_to(RESULTS)) for path in TABLES])
def test_the_readme_explains_every_column(table) -> None:
    prefixes, suffixes = ("box_", "mask_"), ("_fastest",)
    for column in read_rows(table)[0]:
        names = {column, *(column.removeprefix(prefix) for prefix in prefixes)}
        names |= {column.removesuffix(suffix) for suffix in suffixes}
        names |= {"iou_"} if column.startswith("iou_") else set()  # one column per class of the data
        assert names & WORDS, column


def test_rows_are_not_copied() -> None:
    """Trainings of experiments are in one table, from which these take their rows; those of a benchmark are its own."""
    keyed = {path for path in TABLES if path.name == "runs.csv" and "run" in read_rows(path)[0]}
    found = [row["run"] for path in keyed for row in read_rows(path)]
    assert {path.parent.name for path in keyed} == {"trainings", "finetuning"}
    assert len(set(found)) == len(found)


def test_every_committed_picture_is_shown_by_a_page() -> None:
    listed = subprocess.run(["git", "ls-files", "results"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    pages = "".join(page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    for picture in (Path(name) for name in listed if name.endswith((".png", ".jpg"))):
        assert f"{picture.as_posix()})" in pages, picture
