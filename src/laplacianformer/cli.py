"""The command line, `laplacianformer COMMAND`: the table of commands, exit codes and errors. No logic."""

import argparse
import io
import os
import sys
import textwrap
from collections.abc import Sequence
from typing import NoReturn, Protocol

from laplacianformer import __version__
from laplacianformer._util.errors import InputError, is_out_of_memory
from laplacianformer._util.interrupted import as_exceptions
from laplacianformer._util.limits import one_line
from laplacianformer._util.text import printable
from laplacianformer.commands import (
    convert,
    demo,
    detect,
    diagnose,
    evaluate,
    export,
    info,
    predict,
    reproduce,
    segment,
    terminal,
    train,
)

INTERRUPTED = 130  # as shells report a program that Ctrl+C has ended


class Command(Protocol):
    """A module of `laplacianformer.commands`."""

    SUMMARY: str
    DESCRIPTION: str
    EPILOG: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int | None: ...


COMMANDS: dict[str, Command] = {
    "info": info,
    "demo": demo,
    "train": train,
    "convert": convert,
    "eval": evaluate,
    "predict": predict,
    "detect": detect,
    "segment": segment,
    "diagnose": diagnose,
    "export": export,
    "reproduce": reproduce,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command. Exit codes: see EPILOG."""
    terminal.escape_log()
    _print_all_characters()
    parser = _parser()
    parsed, rest = parser.parse_known_args(arguments)
    try:
        with as_exceptions():
            _add_rest(parsed, rest)
            _check_environment()
            code = COMMANDS[parsed.command].run(parsed)
    except (InputError, OSError) as error:
        parser.exit(2, f"laplacianformer {parsed.command}: {printable(error)}\n")
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        said = (
            f"there is not enough memory ({one_line(str(error)) or 'no reason given'}): give it fewer or smaller inputs"
        )
        parser.exit(2, f"laplacianformer {parsed.command}: {printable(said)}\n")
    except KeyboardInterrupt:
        parser.exit(INTERRUPTED, f"laplacianformer {parsed.command}: interrupted\n")
    if code:
        sys.exit(code)


EPILOG = """`laplacianformer COMMAND --help` explains a command, with examples.

exit codes:
  0    success
  1    some images could not be read: predict, detect, segment, diagnose and eval name
       each one
  2    input that can't be used: one line says what is wrong with it
  130  interrupted with Ctrl+C"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(printable(message, keep="\n"))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="laplacianformer",
        description="Vision models with Laplacian attention: train, evaluate, predict, export.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            help=command.SUMMARY,
            description=textwrap.fill(command.DESCRIPTION, 79),
            epilog=command.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(subparser)
    return parser


def _print_all_characters() -> None:
    """Escape what the terminal or the file behind a stream can't encode, such as names where it takes ASCII alone."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _check_environment() -> None:
    """Say now, in one line, what every op would say."""
    if not any(os.environ.get(name) for name in ("LAPLACIANFORMER_BACKEND", "LAPLACIANFORMER_CPU_LEVEL")):
        return
    from laplacianformer.ops._backend import check_environment

    try:
        check_environment()
    except (RuntimeError, ValueError) as error:
        raise InputError(str(error)) from None


def _add_rest(parsed: argparse.Namespace, rest: Sequence[str]) -> None:
    """Add positional arguments after an option, which argparse leaves over, to the command's list if it has one."""
    end = rest.index("--") if "--" in rest else len(rest)
    unknown = [argument for argument in rest[:end] if argument.startswith("-")] if "rest" in parsed else rest
    if unknown:
        raise InputError(f"unknown argument {unknown[0]}: see laplacianformer {parsed.command} --help")
    if rest:
        getattr(parsed, parsed.rest).extend([*rest[:end], *rest[end + 1 :]])
