"""The rules of the house: what may import what, what is public, who prints, how long things are, which words are used.

Every test lists all offenders with file and line.
"""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from laplacianformer import LaplacianAttention
from tests.house import (
    PACKAGE,
    SRC,
    Offence,
    cpp_functions,
    dotted,
    fail_on,
    files,
    imports,
    lines,
    modules,
    phrases,
    python_functions,
    room,
    tree,
)

pytestmark = pytest.mark.skipif(not SRC.exists(), reason="the tests run outside of a checkout")

# Each layer may import from all layers before it, and rooms of one layer not from each other; `data` alone may import
# from `_util` only. The first layers are the model, the later ones tasks and tools.
MODEL = [["_util"], ["ops"], ["attention"], ["nn", "assets"], ["model"], ["weights"], ["inspect"], ["plots"]]
TASKS = ["classification", "detection", "segmentation", "sequences"]
TOOLS = [["training"], TASKS, ["convert", "export"], ["experiments", "demo"], ["commands"], ["cli"], ["__main__"]]


def allowed() -> dict[str, set[str]]:
    """Room: the rooms that it may import from. The package itself names what belongs to the model."""
    known: set[str] = set()
    table = {"data": {"_util"}, "recipes": set[str](), "__init__": {name for layer in MODEL for name in layer}}
    for layer in MODEL:
        table |= {name: set(known) for name in layer}
        known |= set(layer)
    known |= {"data", "recipes"}
    for layer in TOOLS:
        table |= {name: set(known) for name in layer}
        known |= set(layer)
    return table


def test_imports_follow_the_arrows() -> None:
    table, offences = allowed(), []
    for path in modules():
        here = room(path)
        if here not in table:
            offences.append(Offence(path, 1, f"{here} is a room without a place in the table"))
            continue
        for line, name in imports(path):
            package, _, inside = name.partition(".")
            there = inside.split(".")[0]
            if package != "laplacianformer" or there in ("", "__version__", here):
                continue
            if there not in table:
                offences.append(Offence(path, line, f"imports {there} from the package, not from its room"))
            elif there not in table[here]:
                offences.append(Offence(path, line, f"{here} imports {inside}"))
    fail_on(offences)


def code() -> list[Path]:
    """Every file of Python and C++."""
    folders = ("src", "csrc", "tests", "benchmarks", "examples", "docs", "setup.py")
    return files(*folders, suffixes=(".py", ".cpp", ".h"))


def test_no_file_is_longer_than_300_lines() -> None:
    long = [Offence(path, len(lines(path)), f"{len(lines(path))} lines") for path in code() if len(lines(path)) > 300]
    fail_on(long)


def test_the_product_can_be_read_in_one_sitting() -> None:
    """The layer that the package is about: one file, and few options.

    An option is a parameter that may be left out, which all but `dim` and `num_heads` may: what other layers have too,
    such as `qkv_bias`, counts.
    """
    assert len(lines(PACKAGE / "attention" / "laplacian.py")) < 150
    given = inspect.signature(LaplacianAttention).parameters.values()
    assert sum(parameter.default is not parameter.empty for parameter in given) <= 12
    assert {parameter.name for parameter in given if parameter.default is parameter.empty} == {"dim", "num_heads"}


def test_no_function_is_longer_than_50_lines_without_a_reason() -> None:
    """The reason is a comment `long: ...` on the first line of the function or on the line above."""
    offences = []
    for path in code():
        functions = python_functions if path.suffix == ".py" else cpp_functions
        for line, length, name in functions(path):
            near = lines(path)[max(line - 2, 0) : line]
            if length > 50 and not any(re.search(r"(#|//) long: \S", text) for text in near):
                offences.append(Offence(path, line, f"{name} has {length} lines"))
    fail_on(offences)


def test_only_commands_print() -> None:
    """Elsewhere a Console writes to a file that it is given, to make text of a table."""
    offences = []
    for path in modules():
        if room(path) == "commands":
            continue
        for line, name in imports(path):
            if name in ("rich.print", "tqdm") or name.startswith(
                ("rich.progress", "rich.live", "rich.status", "tqdm.")
            ):
                offences.append(Offence(path, line, f"imports {name}"))
        calls = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Call) and prints(node)]
        offences += [Offence(path, call.lineno, f"calls {dotted(call.func)}") for call in calls]
    fail_on(offences)


def prints(call: ast.Call) -> bool:
    called = dotted(call.func)
    if called.split(".")[-1] == "Console":
        return not any(keyword.arg == "file" for keyword in call.keywords)
    return called in ("print", "sys.stdout.write", "sys.stderr.write")


def exported(module: ast.Module) -> set[str]:
    """Public names that a module takes from this package or defines."""
    names: set[str] = set()
    for node in module.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":  # imported on first use
            names |= exported(ast.Module(node.body, []))
        elif isinstance(node, ast.ImportFrom) and str(node.module) == "laplacianformer._util.lazy":
            continue
        elif isinstance(node, ast.ImportFrom) and (node.level or str(node.module).startswith("laplacianformer")):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def packages() -> Iterator[tuple[Path, ModuleType, set[str]]]:
    """Every package that exports something: its file, itself, and the names."""
    for path in modules():
        if path.name == "__init__.py" and (names := exported(tree(path))):
            yield path, importlib.import_module(".".join(path.parent.relative_to(SRC).parts)), names


def test_all_lists_what_a_package_exports() -> None:
    offences = []
    for path, module, names in packages():
        said = getattr(module, "__all__", None)
        if said is None:
            offences.append(Offence(path, 1, f"no __all__ for {', '.join(sorted(names))}"))
        elif sorted(set(said) - {"__version__"}) != sorted(names) or len(said) > len(set(said)):
            wrong = sorted(names ^ (set(said) - {"__version__"}))
            offences.append(Offence(path, 1, f"__all__ and what is exported differ by {wrong or 'repeated names'}"))
    fail_on(offences)


def described(value: object) -> bool:
    """Whether it has a docstring of its own, neither inherited nor made by `dataclass`. Constants have none."""
    if inspect.isclass(value):
        text = value.__dict__.get("__doc__")
        return bool(text) and not text.startswith(f"{value.__name__}(")
    return bool(value.__doc__) if isinstance(value, ModuleType) or inspect.isroutine(value) else True


def test_every_exported_name_has_a_docstring() -> None:
    offences = []
    for path, module, names in packages():
        offences += [Offence(path, 1, "no docstring")] * (not module.__doc__)
        offences += [
            Offence(path, 1, f"{name} has no docstring") for name in names if not described(getattr(module, name))
        ]
    fail_on(offences)


LIBRARY = (
    *("attention", "classification", "data", "detection", "export", "inspect", "model", "ops", "plots"),
    *("segmentation", "sequences", "training", "weights"),
)


def defined(path: Path) -> set[str]:
    """Public names that a module defines itself."""
    body = [node for node in tree(path).body if not isinstance(node, (ast.ImportFrom, ast.If))]
    return exported(ast.Module(body, []))


def test_modules_without_an_underscore_define_only_what_their_package_exports() -> None:
    """In the rooms that users import from. The folder of an op is hidden by the function of the same name."""
    public = {name for _, module, _ in packages() for name in module.__all__}
    offences = []
    for path in modules():
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        in_op_folder = parts[0] == "ops" and (len(parts) > 2 or parts[-1] in public)
        if parts[0] not in LIBRARY or in_op_folder or parts[-1].startswith("_"):
            continue
        offences += [Offence(path, 1, f"{name} is not exported") for name in sorted(defined(path) - public)]
    fail_on(offences)


# English that was here once and needed a second reading. "One row per head", "every n-th image".
PER = (
    "axis|backend|baseline|batch|block|box|call|channel|class|command|core|device|dimension|direction|epoch|figure|file|"
    "folder|head|image|key|landmark|layer|line|matrix|model|op|picture|pixel|process|query|row|run|side|size|stage|step|"
    "task|thread|token|worker|cell|column|feature|item|launch|pair|program|seed|tile|trial|turn"
)
BETWEEN = "and|as|at|by|for|from|if|in|is|like|of|on|or|than|that|to|when|where|with|without"
WRITTEN = (
    *("src", "csrc", "docs", "tests", "benchmarks", "examples", "results"),
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
)
DIALECT = [
    r"\ba row a\b",
    r"\bso manieth\b",
    rf"\b(?:an?|one|two|three|four|five|six|seven|eight|nine|ten|\d+) (?!(?:{BETWEEN})\b)[a-z]+ an? (?:{PER})\b",
]


def test_the_dialect_stays_out() -> None:
    offences = []
    for path in files(*WRITTEN, suffixes=(".py", ".cpp", ".h", ".md", ".yaml")):
        for pattern in DIALECT:
            offences += [Offence(path, line, repr(text)) for line, text in phrases(path, pattern)]
    fail_on(offences)


def test_the_rules_find_what_they_look_for(tmp_path, monkeypatch) -> None:
    """Readers of this file on small sources made for them."""
    source = tmp_path / "code.cpp"
    body = "\n".join(["  x();"] * 60)
    source.write_text(
        f"namespace a {{\nstruct B {{\n  int c() const {{ return '{{'; }}\n}};\nvoid d(int e) {{\n{body}\n}}\n}}\n"
    )
    assert list(cpp_functions(source)) == [(3, 1, "c"), (5, 62, "d")]
    source.write_text("// Sums are taken one row a\n// head at a time; one row per head is fine.\n")
    assert list(phrases(source, DIALECT[2])) == [(1, "one row a // head")]
    module = tmp_path / "laplacianformer" / "data" / "code.py"
    module.parent.mkdir(parents=True)
    module.write_text("from torch.utils import _pytree\ndef f():\n    from ..training import loop\n    torch._C.x()\n")
    monkeypatch.setattr("tests.house.SRC", tmp_path)
    assert (3, "laplacianformer.training.loop") in list(imports(module))
    assert list(python_functions(module)) == [(2, 3, "f")]
