"""docs/reproduction.py, which writes docs/reproduction.md."""

import importlib.util
import json
from pathlib import Path

import pytest

from laplacianformer.experiments.frame import EXPERIMENTS, find

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "reproduction.py"
specification = importlib.util.spec_from_file_location("reproduction", SCRIPT)
page = importlib.util.module_from_spec(specification)
specification.loader.exec_module(page)


def verdict(results: Path, name: str, **changed: str) -> None:
    keys = ("source", "claim", "measured", "verdict", "commit", "date", "machine")
    command = "laplacianformer reproduce earlier-name --coco DIR"
    (results / name).mkdir(parents=True)
    (results / name / "verdict.json").write_text(
        json.dumps(dict.fromkeys(keys, "some words") | {"command": command} | changed)
    )


def test_the_committed_page_is_that_of_the_committed_results() -> None:
    assert page.PAGE.read_text() == page.text(page.RESULTS, page.PAGE.parent)


def test_the_committed_verdicts_judge_the_claims_of_the_code() -> None:
    for name, found in page.verdicts(page.RESULTS).items():
        assert (found["source"], found["claim"]) == (find(name).SOURCE, find(name).CLAIM)


def test_every_picture_and_link_of_the_page_is_there() -> None:
    text = page.PAGE.read_text()
    for name in page.verdicts(page.RESULTS):
        assert f"](../results/experiments/{name}/{name}.png)" in text
    links = [part.split(")")[0] for part in text.split("](")[1:]]
    assert all((page.PAGE.parent / link.partition("#")[0]).exists() for link in links)


def test_a_verdict_is_shown_with_that_of_the_same_claim_elsewhere(tmp_path: Path) -> None:
    verdict(tmp_path, "qk-distances", verdict="agrees")
    assert "Elsewhere" not in page.text(tmp_path, tmp_path)
    verdict(tmp_path, "trained-distances", verdict="agrees in part")
    text = page.text(tmp_path, tmp_path)
    assert "| **agrees**; [trained-distances](#trained-distances): agrees in part |" in text
    assert "- **Verdict**: agrees\n- **Elsewhere**: [trained-distances](#trained-distances) asks the same" in text


def test_kernels_in_a_converted_model_have_their_seeds(tmp_path: Path) -> None:
    row = "1600,1600,71.3,0123456789abcdef,2026-11-18,machine"
    lines = [f"default,grid 7,{seed},{top1},{row}" for seed, top1 in ((0, 50.0), (1, 52.0))]
    lines += [f"kernels,gaussian,0,56.0,{row}", f"learn,directions,0,49.0,{row}", f"images,400,0,30.0,{row}"]
    head = "question,setting,seed,top1,match_images,distil_images,teacher_top1,commit,date,machine"
    (tmp_path / "accuracy.csv").write_text("\n".join([head, *lines]))
    text = page._converted(tmp_path / "accuracy.csv", tmp_path)
    table = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert table == [
        "| gaussian | 1 | 56.0 |",
        "| laplacian | 2 | 51.0 ± 1.4 |",
        "| laplacian, lambda fixed | 1 | 49.0 |",
    ]
    assert "[numbers](accuracy.csv), commit 0123456789ab," in text


@pytest.mark.slow
def test_what_was_run_is_shown_and_what_was_not_is_said(tmp_path, run_fresh) -> None:
    results = tmp_path / "results" / "experiments"
    verdict(results, "lambda", verdict="disagrees", commit="0123456789abcdef+")
    verdict(results, "gradients")
    (results / "gradients" / "lengths.csv").write_text("length\n1\n")
    paths = ["--results", str(results), "--page", str(tmp_path / "docs" / "reproduction.md")]
    command = f"sys.argv = {[str(SCRIPT), *paths]!r}; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    printed = run_fresh(f"import runpy, sys; {command}")
    text = (tmp_path / "docs" / "reproduction.md").read_text()
    assert "| [lambda](#lambda) | some words | **disagrees** |" in text
    assert "[numbers](../results/experiments/trainings/runs.csv), commit 0123456789ab," in text
    assert "`laplacianformer reproduce gradients --coco DIR`: [numbers](../results/experiments/gradients)," in text
    assert "- **Claim** (some words): some words\n- **Measured**" in text
    assert "![lambda](../results/experiments/lambda/lambda.png)" in text
    assert text.count("not run yet") == len(EXPERIMENTS) - 2
    assert f"2 of {len(EXPERIMENTS)} experiments" in printed
