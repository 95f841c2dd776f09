"""The fenced blocks of README.md can be pasted: they run, or at least every option in them exists."""

import contextlib
import io
import re

import pytest

from laplacianformer import cli
from tests.docs.helpers import README, ROOT, blocks, commands, parse, shell_lines

# Commands that need no data and no weights, and what makes them quick.
HARMLESS = [(["info"], ["--size", "32"]), (["reproduce", "--list"], [])]


def test_python_blocks_run_in_order():
    found = blocks(README, "python")
    assert len(found) >= 3
    namespace = {}
    for block in found:
        exec(compile(block.code, "README.md", "exec"), namespace)
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


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "quick"), HARMLESS)
def test_commands_that_need_nothing_run(arguments, quick):
    assert arguments in commands(README)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        cli.main([*arguments, *quick])
    assert output.getvalue().strip()


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
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 140
