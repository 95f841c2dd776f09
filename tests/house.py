"""Reading the repository for tests/test_house.py: files, imports, functions and offences by file and line."""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
PACKAGE = SRC / "laplacianformer"


@dataclass(frozen=True, order=True)
class Offence:
    path: Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT).as_posix()}:{self.line}: {self.what}"


def listed(offences: Iterable[Offence]) -> str:
    """One line per offence; the empty string where there is none."""
    return "\n".join(str(offence) for offence in sorted(set(offences)))


def fail_on(offences: list[Offence]) -> None:
    if offences:
        pytest.fail(f"{len(set(offences))} offences\n{listed(offences)}", pytrace=False)


def files(*folders: str, suffixes: tuple[str, ...]) -> list[Path]:
    """Files of the repository with one of these suffixes. A folder may be a file, or be absent."""
    found: list[Path] = []
    for folder in folders:
        path = ROOT / folder
        found += [path] if path.is_file() else sorted(path.rglob("*"))
    return [path for path in found if path.suffix in suffixes and path.is_file()]


@cache
def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def modules() -> list[Path]:
    return files("src/laplacianformer", suffixes=(".py",))


def room(path: Path) -> str:
    """The folder or module directly below the package."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that is imported, in functions as well; relative imports made absolute."""
    package = path.relative_to(SRC).with_suffix("").parts[:-1]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{stem}.{alias.name}") for alias in node.names)


def dotted(node: ast.expr) -> str:
    """`a.b.c` of an attribute of attributes of a name; what is not that has a name that begins with a dot."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def python_functions(path: Path) -> Iterator[tuple[int, int, str]]:
    """First line (its decorators not counted), number of lines and name of every function."""
    for node in ast.walk(tree(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            yield node.lineno, node.end_lineno - node.lineno + 1, node.name


# Comments, strings and characters, in which braces mean nothing. Raw strings are not used.
_OPAQUE = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*', re.S | re.M
)
_SCOPE = re.compile(r"\b(namespace|struct|class|union|enum|extern)\b[^()]*$")


def cpp_functions(path: Path) -> Iterator[tuple[int, int, str]]:
    """The same for C++: blocks after a parenthesis, outside of other functions."""
    text = _OPAQUE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), path.read_text(encoding="utf-8"))
    inside: list[int | None] = []  # for each open brace: where its function began; None for a namespace or a class
    head = 0
    for match in re.finditer(r"[{};]", text):
        if match[0] == "{":
            before = text[head : match.start()]
            in_function = any(start is not None for start in inside)
            begins = ")" in before and not _SCOPE.search(before) and not in_function
            inside.append(head + len(before) - len(before.lstrip()) if begins else None)
        elif match[0] == "}" and inside:
            start = inside.pop()
            if start is not None:
                name = re.search(r"(\w+|operator\S+)\s*\(", text[start:])
                first = text.count("\n", 0, start) + 1
                yield first, text.count("\n", 0, match.end()) + 2 - first, name[1] if name else "?"
        head = match.end()


def phrases(path: Path, pattern: str) -> Iterator[tuple[int, str]]:
    """Line and text of what matches a pattern whose spaces may be line breaks, also those between comments."""
    text = path.read_text(encoding="utf-8")
    spaced = pattern.replace(" ", r"(?:[ \t]|\n[ \t]*(?:#|//|\*)?)+")
    for match in re.finditer(spaced, text, re.IGNORECASE):
        yield text.count("\n", 0, match.start()) + 1, " ".join(match[0].split())
