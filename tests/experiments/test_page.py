import json
from pathlib import Path

from laplacianformer.experiments import page
from laplacianformer.experiments.frame import EXPERIMENTS

ROOT = Path(__file__).parents[2]


def verdict(results: Path, name: str, **changed: str) -> None:
    keys = ("source", "claim", "measured", "verdict", "command", "commit", "date", "machine")
    (results / name).mkdir(parents=True)
    (results / name / "verdict.json").write_text(json.dumps(dict.fromkeys(keys, "some words") | changed))


def test_the_committed_page_is_that_of_the_committed_results() -> None:
    assert (ROOT / page.PAGE).read_text() == page.text(ROOT / "results", (ROOT / page.PAGE).parent)


def test_every_picture_and_folder_of_the_page_is_there() -> None:
    for name in page.verdicts(ROOT / "results"):
        assert f"](../results/{name}/{name}.png)" in (ROOT / page.PAGE).read_text()
        assert (ROOT / "results" / name / f"{name}.png").exists()


def test_what_was_run_is_shown_and_what_was_not_is_said(tmp_path, monkeypatch, capsys) -> None:
    verdict(tmp_path / "results", "lambda", verdict="disagrees", commit="0123456789abcdef+")
    monkeypatch.chdir(tmp_path)
    page.write(Path("results"))
    text = (tmp_path / "docs" / "reproduction.md").read_text()
    assert "| [lambda](#lambda) | some words | **disagrees** |" in text
    assert "commit 0123456789ab," in text
    assert "![lambda](../results/lambda/lambda.png)\n\n*Claim (some words): some words*" in text
    assert text.count("not run yet") == len(EXPERIMENTS) - 1
    assert f"1 of {len(EXPERIMENTS)} experiments" in capsys.readouterr().out
