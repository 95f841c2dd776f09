"""What README.md and the pages in docs/ contain: fenced blocks, commands, links."""

import argparse
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

from laplacianformer import cli

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
ELSEWHERE = ("CONTRIBUTING.md", "CHANGELOG.md", "csrc/README.md", "results/README.md")
PAGES = [README, *(ROOT / page for page in ELSEWHERE), *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"bash", "python", "text", "bibtex", "yaml"}

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^()\s]+)\)")


class Block(NamedTuple):
    language: str
    code: str


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, *languages: str) -> list[Block]:
    """The fenced blocks of a page, all or those in some languages, in order."""
    found = [Block(*match) for match in _FENCE.findall(page.read_text(encoding="utf-8"))]
    return [block for block in found if not languages or block.language in languages]


def prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    """Relative links, with their anchors."""
    return [link for link in _LINK.findall(prose(page)) if ":" not in link]


def lines(block: Block) -> list[list[str]]:
    """The command lines of a shell block, as words; lines that end with a backslash are joined."""
    code = block.code.replace("\\\n", " ")
    return [words for line in code.splitlines() if (words := shlex.split(line, comments=True))]


def shell_lines(page: Path) -> list[list[str]]:
    return [words for block in blocks(page, "bash") for words in lines(block)]


def arguments_of(words: list[str]) -> list[str]:
    """The arguments of `laplacianformer ...`, also behind torchrun or srun, up to a redirection or a pipe."""
    arguments = words[words.index("laplacianformer") + 1 :]
    end = next((index for index, word in enumerate(arguments) if word in {">", "|", "&&", ";"}), None)
    return arguments[:end]


def commands(page: Path) -> list[list[str]]:
    return [arguments_of(words) for words in shell_lines(page) if "laplacianformer" in words]


class _Parsed(Exception):
    """Ends `cli.main` when the arguments are read, before anything runs."""


def parse(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """What the real parser makes of a command line; fails the test where it does not take it."""
    original = argparse.ArgumentParser.parse_known_args

    def parse_known_args(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        if self.prog == "laplacianformer":  # and not the parser of a command inside it
            raise _Parsed(*result)
        return result

    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", parse_known_args)
    try:
        cli.main(arguments)
    except _Parsed as parsed:
        namespace, rest = parsed.args
    except SystemExit as error:
        pytest.fail(f"laplacianformer {shlex.join(arguments)} ends with exit code {error.code}")
    # Commands with a list of images or overrides also take them after an option, where argparse leaves them over.
    takes_more = any(isinstance(value, list) for value in vars(namespace).values())
    unknown = [word for word in rest if word.startswith("-") or not takes_more]
    assert not unknown, f"laplacianformer {shlex.join(arguments)}: unknown {unknown}"
    return namespace
