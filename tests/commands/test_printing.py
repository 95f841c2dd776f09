"""Only commands print: everything else returns values."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "laplacianformer"
ROOMS = ("_util", "demo", "export", "inspect", "plots")
FILES = (
    *(path for room in ROOMS for path in sorted((PACKAGE / room).rglob("*.py"))),
    *(
        PACKAGE / task / f"{name}.py"
        for task in ("classification", "detection")
        for name in ("inference", "evaluation")
    ),
    PACKAGE / "cli.py",
    PACKAGE / "weights.py",
)
AS_TEXT = {PACKAGE / "inspect" / "diagnose.py"}  # renders a table as a string


def prints(path: Path) -> bool:
    """Whether a module calls print, or imports a console or progress bar of rich."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            return True
        if isinstance(node, ast.ImportFrom) and node.module in ("rich", "rich.console", "rich.progress"):
            return True
    return False


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_outside_commands_does_not_print(path):
    assert prints(path) == (path in AS_TEXT)


def test_printing_is_recognised():
    assert prints(PACKAGE / "commands" / "terminal.py")
    assert prints(PACKAGE / "commands" / "info.py")
