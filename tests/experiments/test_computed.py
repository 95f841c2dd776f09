"""Experiments that compute and do not train: each in its quick form, from the command line to the picture."""

import json

import pytest
from PIL import Image

from laplacianformer import cli
from laplacianformer.experiments import gradients, solver_convergence
from laplacianformer.experiments.rows import read_rows

pytest.importorskip("matplotlib")


@pytest.mark.parametrize(
    ("name", "table", "verdict"),
    [
        ("solver-convergence", "errors.csv", "agrees in part"),
        ("gradients", "lengths.csv", "agrees"),
        ("accuracy-flops", "models.csv", "agrees in part"),
    ],
)
def test_quick_form(name, table, verdict, tmp_path, capsys) -> None:
    cli.main(["reproduce", name, "--quick", "--output", str(tmp_path)])
    folder = tmp_path / name
    written = json.loads((folder / "verdict.json").read_text())
    assert written["verdict"] == verdict
    assert written["commit"]
    assert verdict in capsys.readouterr().out
    assert read_rows(folder / table)
    with Image.open(folder / f"{name}.png") as picture:
        assert min(picture.size) > 400


def test_the_papers_start_keeps_an_eigenvalue_of_one_away_from_its_inverse() -> None:
    """Its residual there is 1 - 2 = -1, whose square is 1."""
    rows = [row for row in solver_convergence.measure(seed=0, steps=20) if row["matrix"] == "2"]
    assert solver_convergence.steps_needed(rows, "2", "Newton-Schulz, the paper's start") == float("inf")
    assert solver_convergence.steps_needed(rows, "2", "Newton-Schulz, identity start") < 10


@pytest.mark.parametrize("width", [1, 32])
def test_lengths_of_gradients_are_those_of_the_formulas(width) -> None:
    for row in gradients.measure(directions=2):
        if row["width"] == width and row["kernel"] == "gaussian":
            distance = row["distance"]
            expected = distance / 16 * 2.718281828459045 ** (-(distance**2) / 32)
            assert row["length"] == pytest.approx(expected, rel=1e-9, abs=1e-300)
