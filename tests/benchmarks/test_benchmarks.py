"""The scripts in benchmarks/ are not run here; that they can be started is."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_every_script_can_be_imported() -> None:
    names = sorted(path.stem for path in FOLDER.glob("*.py"))
    assert len(names) > 5
    code = f"import importlib\nfor name in {names}: importlib.import_module(name)"
    result = subprocess.run([sys.executable, "-c", code], cwd=FOLDER, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
