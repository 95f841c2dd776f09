"""The fenced blocks of README.md can be pasted: they run, and every option in them exists."""

import re

import pytest

from tests.docs.helpers import README, ROOT, commands, parse, shell_lines
from tests.docs.running import run


@pytest.mark.slow
def test_it_runs_from_top_to_bottom(monkeypatch, tmp_path):
    namespace = run(README, monkeypatch, tmp_path)
    assert namespace["logits"].shape == (1, 10)
    assert [tuple(feature_map.shape[2:]) for feature_map in namespace["feature_maps"]] == [
        (64, 104),
        (32, 52),
        (16, 26),
        (8, 13),
    ]
    assert namespace["out"].shape == (1, 14 * 14, 64)


@pytest.mark.parametrize("arguments", commands(README), ids=" ".join)
def test_commands_are_known(arguments, monkeypatch):
    parse(arguments, monkeypatch)


def test_an_unknown_option_is_noticed(monkeypatch):
    with pytest.raises(AssertionError, match="unknown"):
        parse(["train", "--recipe", "digits", "--wrong"], monkeypatch)


def test_an_unknown_command_is_noticed(monkeypatch, capsys):
    with pytest.raises(pytest.fail.Exception, match="exit code 2"):
        parse(["trian", "--recipe", "digits"], monkeypatch)


def test_shell_blocks_hold_only_commands():
    assert {words[0] for words in shell_lines(README)} <= {"laplacianformer", "pip", "make", "python", "torchrun"}


def test_the_extras_of_pip_exist():
    stated = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = set(re.findall(r"^(\w+) = \[", stated.split("[project.optional-dependencies]")[1], re.MULTILINE))
    named = {
        extra
        for group in re.findall(r"\.\[([\w,]+)\]", README.read_text(encoding="utf-8"))
        for extra in group.split(",")
    }
    assert named
    assert named <= extras


def test_it_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 125
