"""Examples are what users copy: they use public names only."""

import ast
import json
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def sources() -> dict[str, str]:
    """The Python of each example; of a notebook, its code without lines for the shell."""
    found = {path.name: path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.py")}
    for path in EXAMPLES.glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        lines = [line.rstrip() for cell in cells if cell["cell_type"] == "code" for line in cell["source"]]
        found[path.name] = "\n".join(line for line in lines if not line.startswith(("!", "%")))
    return found


def private(source: str) -> list[str]:
    """Names in imports, and attributes, that begin with one underscore."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names.append(node.attr)
    parts = [(name, part) for name in names for part in name.split(".")]
    return sorted({name for name, part in parts if part.startswith("_") and not part.startswith("__")})


def test_examples_use_public_names_only() -> None:
    found = sources()
    assert {"digits.py", "finetune.ipynb"} < set(found)
    assert not {name: names for name, source in found.items() if (names := private(source))}


def test_private_names_are_found() -> None:
    code = "from laplacianformer.data._images import a\nimport b.__main__\nc.d._e()\nfrom f import _g"
    assert private(code) == ["_e", "f._g", "laplacianformer.data._images.a"]
