"""The scripts in benchmarks/ are too slow to run here: tested is that they start, and what they compute from times."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))


# What the scripts compute from what they measure. Run with `folder`, an empty one.
COMPUTED = {
    "ratios of kernels are over ours and the limit counts elements": """
import kernels
kernels.peak_elements = {"distance": 1000, "gradient": 500}.get
seconds = {"ours": [2.0, 4.0, 4.0], "cdist": [6.0, 8.0, 16.0]}
seconds |= {"limit_distance_plain": [1.0, 2.0, 2.0], "limit_distance_fused": [0.5, 1.0, 1.0]}
seconds |= {"limit_gradient_plain": [0.1, 0.2, 0.2], "limit_gradient_fused": [0.2, 0.4, 0.4]}
times = {name: {"median_ms": 1e3 * sorted(t)[1], "fastest_ms": 1e3 * min(t)} for name, t in seconds.items()}
timed = {"times": times, "each": seconds, "cpu_over_wall": 1.0}
rows = {row["method"]: row for row in kernels.rows_of({"what": "kernel", "phase": "forward"}, timed, 1600)}
assert rows["cdist"]["over_ours"] == 3.0
assert rows["cdist"]["over_ours_fastest"] == 3.0
assert "over_ours" not in rows["limit_distance_plain"] and "fraction_of_limit" not in rows["cdist"]
assert abs(rows["ours"]["fraction_of_plain_limit"] - 0.8) < 1e-12
assert abs(rows["ours"]["fraction_of_limit"] - 0.4) < 1e-12
for phase, plain, limit in (("backward", 0.16, 0.16), ("forward_backward", 0.96, 0.72)):
    rows = kernels.rows_of({"what": "kernel", "phase": phase}, timed, 1600)
    assert abs(rows[0]["fraction_of_plain_limit"] - plain) < 1e-12
    assert abs(rows[0]["fraction_of_limit"] - limit) < 1e-12
rows = {row["method"]: row for row in kernels.rows_of({"what": "kernel", "phase": "forward"}, timed, 1600)}
assert rows["ours"]["what"] == "kernel"
""",
    "a detector that doesn't see its padding has other features": """
import padding, torch
from laplacianformer.detection import _backbone, retinanet

torch.manual_seed(0)
model = retinanet("laplacianformer_nano", 2, short_side=64, long_side=96).eval()
images = [torch.rand(3, 64, 64), torch.rand(3, 64, 90)]
seen = []
model.backbone.register_forward_hook(lambda module, inputs, output: seen.append(output["0"][0]))
with torch.no_grad():
    model(images)
    with padding.hidden_padding():
        model(images)
    model(images)
assert torch.equal(seen[0], seen[2]) and not torch.allclose(seen[0], seen[1])
exec(padding.WITHOUT_MASK.partition("sys.exit")[0])
with torch.no_grad():
    model(images)
assert torch.equal(seen[1], seen[3])
""",
    "changes of accuracy are paired by image": """
import torch
from contribution import row

before, after = torch.tensor([True, True, True, False]), torch.tensor([True, False, False, True])
found = row("1", "off", before, after)
assert (found["top1"], found["change"], found["lost"], found["gained"]) == (0.5, -25.0, 2, 1)
difference = after.double() - before.double()
assert found["standard_error"] == round(100 * difference.std(correction=0).item() / 2, 2)
""",
    "the products of a model have its operations": """
import models, torch
from torch.utils.flop_counter import FlopCounterMode
model, image = models.BACKBONES["floor"](64).eval(), torch.randn(1, 3, 64, 64)
shapes = models.product_shapes(model, image)
with FlopCounterMode(display=False) as counter, torch.no_grad():
    model(image)
local = sum(2 * 9 * s * s * c * d for s, c, d in zip((16, 8, 4, 2), (64, 128, 320, 512), (2, 2, 2, 2)))
assert sum(2 * rows * width * out for rows, width, out in shapes) == counter.get_total_flops() - local
models.build_products((64, 64), 2, True)()
""",
    "conversions of several seeds are summed up": """
import conversion_accuracy as script

rows = [
    {"question": question, "setting": setting, "seed": seed, "top1": top1, "teacher_top1": "70.0"}
    for question, setting, seed, top1 in (
        ("default", "grid 7", "0", "50.0"), ("default", "grid 7", "1", "54.0"), ("images", "400", "0", "30.0"),
        ("learn", "scales", "0", "20.0"), ("learn", "scales, gain fixed", "0", "10.0"),
    )
]
first, second, *_ = script.summed_up(rows)
assert (first["top1"], first["seeds"], round(first["deviation"], 3)) == (52.0, 2, 2.828)
assert (second["top1"], second["seeds"]) == (30.0, 1)
script.draw(script.summed_up(rows), folder / "accuracy.png")
assert (folder / "accuracy.png").stat().st_size > 1000
""",
}
RUN = f"""
import contextlib, importlib, io, json, os, pathlib, sys, tempfile, traceback
os.chdir({str(FOLDER)!r})
sys.path.insert(0, {str(FOLDER)!r})
said, failures = {{}}, {{}}
for name in {NAMES}:
    module = importlib.import_module(name)
    if hasattr(module, "main"):
        sys.argv = [f"{{name}}.py", "--help"]
        with contextlib.redirect_stdout(io.StringIO()) as said[name]:
            try:
                module.main()
            except SystemExit as ended:
                assert ended.code == 0
for name, code in {COMPUTED!r}.items():
    with tempfile.TemporaryDirectory() as folder:
        try:
            exec(code, {{"folder": pathlib.Path(folder)}})
        except Exception:
            failures[name] = traceback.format_exc()
print(json.dumps([{{name: text.getvalue() for name, text in said.items()}}, failures]))
"""


@pytest.fixture(scope="module")
def found(run_fresh: Callable[..., str]) -> tuple[dict[str, str], dict[str, str]]:
    """The help of every script, and the failures of COMPUTED, all in one process, as importing takes nearly all of the
    time: not in this one, as some scripts change the environment, and modules have the names of others."""
    pytest.importorskip("matplotlib")
    said, failures = json.loads(run_fresh(RUN).splitlines()[-1])
    return said, failures


@pytest.mark.slow
def test_every_script_can_be_imported_and_has_help(found: tuple[dict[str, str], dict[str, str]]) -> None:
    assert len(NAMES) > 5
    scripts = [name for name in NAMES if name not in ("ahead_of_time", "comparing", "trainings")]
    assert sorted(found[0]) == scripts
    assert all(f"usage: {name}.py" in text for name, text in found[0].items())
    assert all(f"python benchmarks/{name}.py" in text for name, text in found[0].items())


@pytest.mark.slow
@pytest.mark.parametrize("what", COMPUTED)
def test_scripts_compute(what: str, found: tuple[dict[str, str], dict[str, str]]) -> None:
    assert what not in found[1], found[1][what]
