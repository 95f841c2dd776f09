import json

import pytest

from laplacianformer import cli
from laplacianformer.experiments import frame
from laplacianformer.experiments.frame import EXPERIMENTS, Outcome


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_says_what_the_paper_claims(name) -> None:
    experiment = frame.find(name)
    assert experiment.SOURCE
    assert experiment.CLAIM.endswith(".")


def test_list_names_all(capsys) -> None:
    cli.main(["reproduce", "--list"])
    out = capsys.readouterr().out
    assert all(name in out for name in EXPERIMENTS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name an experiment"),
        (["nothing"], "no experiment 'nothing'"),
        (["mixers"], "give --cifar10 DIR"),
    ],
)
def test_bad_input_is_one_line_and_code_2(arguments, message, capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["reproduce", *arguments])
    assert message in capsys.readouterr().err


def test_the_verdict_is_written_and_printed(tmp_path, monkeypatch, capsys) -> None:
    class Stub:
        SOURCE, CLAIM = "Figure 0", "The claim."

        @staticmethod
        def run(settings):
            assert settings.quick
            return Outcome("[bold]not markup", "agrees")

    monkeypatch.setattr(frame, "find", lambda name: Stub)
    quiet = frame.reproduce("attention", output=tmp_path, quick=True)
    assert quiet == (Stub, Outcome("[bold]not markup", "agrees"), tmp_path / "attention")
    assert capsys.readouterr() == ("", "")
    cli.main(["reproduce", "attention", "--quick", "--output", str(tmp_path)])
    out = capsys.readouterr().out
    assert "[bold]not markup" in out
    assert "agrees" in out
    written = json.loads((tmp_path / "attention" / "verdict.json").read_text())
    assert written["claim"] == "The claim."
    assert written["scale"] == "quick"
    assert written["command"] == "laplacianformer reproduce attention --quick"
    assert written["commit"]
