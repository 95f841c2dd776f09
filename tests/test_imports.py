"""What imports pull in, step by step, in one process that has nothing but torch and timm before."""

import json
from collections.abc import Callable

import pytest

# Each step may import what those before it did, so a module that an earlier step imports is seen in it, too.
STEPS = {
    "libraries": "import torch",
    "package": "import laplacianformer",
    "command line": "import laplacianformer.cli",
    "use on CPUs": "from laplacianformer import ops; ops.backends(); x = torch.zeros(2, 3); "
    "ops.laplacian_kernel(x, x, 4.0)",
    "inference": "import laplacianformer.classification._inference, laplacianformer.classification._evaluation",
    "tasks": "import laplacianformer.classification, laplacianformer.detection, laplacianformer.sequences, "
    "laplacianformer.training",
}
HEAVY = {
    *("lightning", "pytorch_lightning", "torchmetrics", "triton", "matplotlib", "pydantic", "onnx", "gradio"),
    *("sklearn", "transformers"),
}
PROGRAM = """
import json, sys

after = {}
for name, step in STEPS.items():
    exec(step)
    after[name] = list(sys.modules)
print(json.dumps(after))
"""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def after(run_fresh: Callable[..., str]) -> dict[str, set[str]]:
    """The modules that are there after each step."""
    printed = run_fresh(f"STEPS = {STEPS!r}{PROGRAM}")
    return {name: set(modules) for name, modules in json.loads(printed).items()}


def test_the_package_imports_nothing_heavy(after: dict[str, set[str]]) -> None:
    """Nothing that torch and timm don't import by themselves (timm looks for Triton)."""
    assert not HEAVY & (after["package"] - after["libraries"])


def test_the_command_line_starts_without_what_commands_need(after: dict[str, set[str]]) -> None:
    """Only torch, timm and rich: --help must not wait for the rest, or fail where an extra is not installed."""
    added = after["command line"] - after["package"]
    needed = {"lightning", "matplotlib", "onnx", "gradio", "pydantic", "yaml"}
    assert not needed & {name.split(".")[0] for name in added}
    ours = {name for name in added if name.startswith("laplacianformer.")}
    ours = {name for name in ours if not name.startswith("laplacianformer.commands")}
    assert ours - {"laplacianformer._util.errors"} == {"laplacianformer.cli"}


def test_use_on_cpus_loads_no_kernel_of_triton(after: dict[str, set[str]]) -> None:
    """timm may import Triton itself; ours waits until a kernel is needed."""
    found = after["use on CPUs"]
    assert "laplacianformer.ops.laplacian_kernel" in found
    assert not [name for name in found if name.startswith("laplacianformer.") and name.endswith(".triton")]


def test_inference_needs_no_recipes_and_no_matplotlib(after: dict[str, set[str]]) -> None:
    """Recipes need the packages for training."""
    assert not {"matplotlib", "laplacianformer.recipes"} & after["inference"]


def test_tasks_leave_the_packages_for_training_alone(after: dict[str, set[str]]) -> None:
    assert "laplacianformer.training" in after["tasks"]
    assert not {"lightning", "pydantic", "matplotlib"} & after["tasks"]
