"""The command line itself: wrong arguments, help, exit codes, and that it starts without what commands need."""

import argparse
import io
import os
import signal
import subprocess
import sys

import pytest
import torch
from rich.table import Table

from laplacianformer import cli
from laplacianformer._util.errors import InputError
from laplacianformer.cli import COMMANDS, main
from laplacianformer.commands import terminal

NAMES = ("info", "demo", "train", "convert", "eval", "predict", "detect", "segment", "diagnose", "export", "reproduce")


def code_of(arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return stop.value.code


@pytest.mark.parametrize("arguments", [[], ["unknown"], ["info", "--size", "0"], ["info", "--size", "abc"]])
def test_wrong_command_lines_end_with_code_2_and_a_reason(arguments, capsys):
    assert code_of(arguments) == 2
    assert "usage: laplacianformer" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["info", "more"], ["info", "--sizes"], ["predict", "a.png", "--tpo", "3"]])
def test_unknown_arguments_are_named(arguments, capsys):
    assert code_of(arguments) == 2
    command, unknown = arguments[0], arguments[-2 if "--tpo" in arguments else -1]
    expected = f"laplacianformer {command}: unknown argument {unknown}: see laplacianformer {command} --help\n"
    assert capsys.readouterr().err == expected


def test_positional_arguments_may_follow_options_and_a_double_dash(monkeypatch):
    parsed = []
    monkeypatch.setattr(COMMANDS["train"], "run", lambda arguments: parsed.append(arguments.overrides))
    main(["train", "a.b=1", "--recipe", "digits", "c.d=2", "--resume", "e.f=3"])
    main(["train", "a.b=1", "--recipe", "digits", "--", "--c.d=2"])
    assert parsed == [["a.b=1", "c.d=2", "e.f=3"], ["a.b=1", "--c.d=2"]]


# ---- memory and encodings ----


@pytest.mark.parametrize("command", ["predict", "eval", "diagnose"])
@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB\n"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_too_little_memory_is_one_line(command, error, monkeypatch, capsys):
    def run(arguments):
        raise error

    monkeypatch.setattr(COMMANDS[command], "run", run)
    assert code_of([command, *(["a.png"] if command != "eval" else ["--data", "x"])]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"laplacianformer {command}: there is not enough memory (")
    assert said.count("\n") == 1


def test_another_error_of_a_program_is_not_hidden(monkeypatch):
    def run(arguments):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(COMMANDS["info"], "run", run)
    with pytest.raises(RuntimeError, match="shapes differ"):
        main(["info"])


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_what_the_output_can_not_encode_is_escaped(encoding, monkeypatch):
    def run(arguments):
        print("日本")
        table = Table("日本")
        table.add_row("日本")
        terminal.show("日本 [b]", table)
        terminal.note("日本")

    monkeypatch.setattr(COMMANDS["info"], "run", run)
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    main(["info"])
    for stream, count in zip(streams, (4, 1), strict=True):
        stream.flush()
        assert stream.buffer.getvalue().count(rb"\u65e5\u672c") == count


# ---- help ----


def test_help_lists_all_commands_and_exit_codes(capsys):
    assert code_of(["--help"]) == 0
    out = capsys.readouterr().out
    assert tuple(COMMANDS) == NAMES
    assert all(f"\n    {name}" in out for name in NAMES)
    assert "exit codes:" in out
    assert "130  interrupted" in out


@pytest.mark.parametrize("name", NAMES)
def test_help_of_a_command_has_a_description_and_examples_that_parse(name, capsys):
    assert code_of([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert " ".join(COMMANDS[name].DESCRIPTION.split()[:5]) in " ".join(out.split())
    examples = [line.strip() for line in out.splitlines() if line.startswith("  laplacianformer ")]
    assert examples
    for example in examples:
        words = example.split(">")[0].replace("'", "").split()[1:]
        parsed, rest = cli._parser().parse_known_args(words)
        assert parsed.command == name
        cli._add_rest(parsed, rest)


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_explained(name):
    parser = argparse.ArgumentParser()
    COMMANDS[name].add_arguments(parser)
    assert all(action.help for action in parser._actions)


# ---- how a command ends ----


def run_instead(monkeypatch, error):
    def run(arguments):
        raise error

    monkeypatch.setattr(COMMANDS["info"], "run", run)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("wrong input"), 2, "wrong input"),
        (FileNotFoundError(2, "No such file", "x"), 2, "[Errno 2] No such file: 'x'"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
    ids=["input", "file", "Ctrl+C"],
)
def test_an_error_is_one_line_and_an_exit_code(monkeypatch, capsys, error, code, line):
    run_instead(monkeypatch, error)
    assert code_of(["info"]) == code
    assert capsys.readouterr().err == f"laplacianformer info: {line}\n"


def test_errors_in_the_program_are_not_hidden(monkeypatch):
    run_instead(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(["info"])


def test_the_code_of_a_command_is_the_exit_code(monkeypatch):
    monkeypatch.setattr(COMMANDS["info"], "run", lambda arguments: 1)
    assert code_of(["info"]) == 1


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_ends_with_one_line(run_fresh):
    code = "import os, signal, time\nfrom laplacianformer import cli\n"
    code += "def run(arguments):\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(60)\n"
    code += "cli.COMMANDS['info'].run = run\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "try:\n    cli.main(['info'])\nexcept SystemExit as ended:\n    print(ended.code)"
    assert run_fresh(code) == "laplacianformer info: interrupted\n130\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "said"), [(["-m", "laplacianformer", "info"], ""), (["-c", "import laplacianformer"], "Traceback")]
)
def test_an_interrupt_while_a_command_starts_ends_it_without_a_traceback(tmp_path, start, said):
    """It comes while timm is imported. Programs that import the package keep their tracebacks."""
    (tmp_path / "timm.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    process = subprocess.run(
        [sys.executable, *start],
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells ignore it in the background
    )
    assert process.returncode == -signal.SIGINT  # which shells report as 130
    assert process.stdout == ""
    assert process.stderr[:9] == said


def test_an_interrupt_that_a_library_turns_into_another_error_is_still_one(monkeypatch, capsys):
    def run(arguments):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("half a module") from None

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(COMMANDS["info"], "run", run)
    assert code_of(["info"]) == 130
    assert capsys.readouterr().err == "laplacianformer info: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is before
