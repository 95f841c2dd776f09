"""examples/finetune.ipynb runs from top to bottom, and states what came out."""

import json
import re

import pytest

from tests.docs.helpers import ROOT

NOTEBOOK = ROOT / "examples" / "finetune.ipynb"
# A quarter of the digits, which is enough to learn from.
SMALL = {"FINETUNE_IMAGES": "400"}
LEAST = 80.0  # per cent, with that few; a new head alone has about 10


def cells(kind):
    return [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def code():
    return "\n\n".join("".join(cell["source"]) for cell in cells("code"))


def accuracies(text):
    return [float(number) for number in re.findall(r"held-out accuracy ([\d.]+)%", text)]


def printed():
    outputs = [output for cell in cells("code") for output in cell["outputs"] if output["output_type"] == "stream"]
    return "".join("".join(output["text"]) for output in outputs)


def test_it_was_executed_in_order():
    assert [cell["execution_count"] for cell in cells("code")] == list(range(1, len(cells("code")) + 1))
    assert any("image/png" in output.get("data", {}) for cell in cells("code") for output in cell["outputs"])


def test_the_text_states_what_the_outputs_show():
    text = "\n".join("".join(cell["source"]) for cell in cells("markdown"))
    (stated,) = re.findall(r"More than (\d+) % of the held-out digits", text)
    assert accuracies(printed())[-1] > float(stated)


def test_it_is_small():
    assert NOTEBOOK.stat().st_size < 300_000


@pytest.mark.slow
def test_it_runs(tmp_path, run_fresh):
    ran = run_fresh(f"import os; os.chdir({str(tmp_path)!r})\n{code()}", **SMALL, MPLBACKEND="agg")
    assert accuracies(ran)[-1] >= LEAST
    for sentence in re.findall(r"[A-Z][^.\d│┃]*\.", " ".join(printed().split())):  # those without numbers
        assert sentence in " ".join(ran.split())
    assert (tmp_path / "attention.png").is_file()
    assert (tmp_path / "digits.safetensors").is_file()
