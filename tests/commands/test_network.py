"""No command opens a connection or looks up a name. `demo`, which serves a page on this computer: tests/demo."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import laplacianformer
from laplacianformer.cli import COMMANDS
from laplacianformer.detection import save_detector
from laplacianformer.segmentation import save_segmenter
from laplacianformer.weights import save_weights
from tests.convert.helpers import teacher
from tests.detection import helpers
from tests.export.helpers import save_one_stage
from tests.helpers import CLASSES, picture, save_small
from tests.segmentation import helpers as segmentation
from tests.training.helpers import image_folder, write_recipe

CONVERSION = (
    *("match.epochs=1", "match.batch_size=4", "match.warmup_epochs=0", "convert.match_samples=null", "data.workers=0"),
    *("distil.epochs=1", "distil.batch_size=4", "distil.warmup_epochs=0", "data.val_samples=null", "data.size=32"),
    *("convert.attention_args={grid: 2, gain: learned}", "run.accelerator=cpu", "run.devices=1"),
)
ROOT = Path(__file__).parents[2]
PACKAGE = Path(laplacianformer.__file__).parent

# Imported by every process of Python that is started, also by those that a command starts itself.
AUDIT = """
import os, sys

LOOKUPS = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo")
LOCAL = (None, "", "localhost", "127.0.0.1", "::1", b"localhost", b"127.0.0.1")
report = os.open(os.environ["NETWORK_REPORT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def note(event, arguments):
    if event in LOOKUPS:
        host = arguments[0][0] if isinstance(arguments[0], tuple) else arguments[0]
    elif event in ("socket.connect", "socket.sendto", "socket.sendmsg") and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    else:
        return
    if host not in LOCAL:
        os.write(report, f"{event} {host}\\n".encode())

sys.addaudithook(note)
"""
RUN = """
import sys
from laplacianformer.cli import main
from laplacianformer.inspect import _cost

_cost.SIZES = _cost.SIZES[:1]  # info counts for seconds
for line in sys.stdin.read().splitlines():
    main(line.split("\\t"))
"""


@pytest.fixture
def environment(tmp_path):
    (tmp_path / "audit").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "audit" / "sitecustomize.py").write_text(AUDIT)
    (tmp_path / "report").touch()
    environment = {**os.environ, "HOME": str(tmp_path / "home"), "NETWORK_REPORT": str(tmp_path / "report")}
    paths = tmp_path / "audit", PACKAGE.parent, environment.get("PYTHONPATH", "")
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    environment |= {"MPLCONFIGDIR": str(tmp_path / "matplotlib"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch")}
    for name in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME"):
        environment.pop(name, None)
    return environment


def run(code, environment, folder, commands=()):
    given = "\n".join("\t".join(str(argument) for argument in command) for command in commands)
    done = subprocess.run(
        [sys.executable, "-c", code], input=given, env=environment, cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_no_command_uses_the_network_or_leaves_files_at_home(tmp_path, environment):
    """The native code of onnxruntime, which no audit hook sees, would leave the identifier of its telemetry at home."""
    pytest.importorskip("onnxruntime", reason="install laplacianformer[export]")
    picture(0).save(tmp_path / "image.png")
    image_folder(tmp_path / "images", classes=2, train=4, val=2)
    write_recipe(tmp_path / "tiny.yaml", tmp_path / "images", data={"workers": 1, "cache": False},
                 augment={"crop_padding": 0}, optimise={"epochs": 2}, run={"tensorboard": True})  # fmt: skip
    for name in CLASSES:
        (tmp_path / "labelled" / name).mkdir(parents=True)
        picture(1).save(tmp_path / "labelled" / name / "1.png")
    save_small(tmp_path / "model.safetensors")
    save_one_stage(tmp_path / "stage.safetensors")
    save_weights(tmp_path / "softmax.safetensors", teacher("own", num_classes=2), classes=["a", "b"], metadata={})
    save_detector(tmp_path / "detector.safetensors", helpers.small("retinanet"), classes=["cat", "dog", "owl"])
    save_segmenter(tmp_path / "segmenter.safetensors", segmentation.small(), labels=segmentation.CLASSES)
    weights = ("--weights", "model.safetensors")
    commands = [
        ("info",),
        ("predict", *weights, "image.png", "--attention", "attention.png"),
        ("eval", *weights, "--data", "labelled"),
        ("train", "--recipe", "tiny.yaml"),
        ("detect", "--weights", "detector.safetensors", "image.png"),
        ("segment", "--weights", "segmenter.safetensors", "image.png"),
        ("diagnose", *weights, "image.png"),
        ("convert", "softmax.safetensors", "--data", "images", "--output", "converted.safetensors", *CONVERSION),
        ("export", "--weights", "stage.safetensors", "--format", "onnx", "--precision", "int8", "model.onnx"),
        ("reproduce", "gradients", "--quick"),
    ]
    assert {command[0] for command in commands} == set(COMMANDS) - {"demo"}
    run(RUN, environment, tmp_path, commands)
    assert (tmp_path / "report").read_text() == ""
    assert not list((tmp_path / "home").rglob("*"))


def test_the_audit_sees_look_ups_and_connections_also_of_children(tmp_path, environment):
    code = """
import socket, subprocess, sys
subprocess.run([sys.executable, "-c", "import socket; socket.getaddrinfo('127.0.0.2', 80)"], check=True)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as packets:
    packets.connect(("127.0.0.3", 9))
"""
    run(code, environment, tmp_path)
    assert (tmp_path / "report").read_text() == "socket.getaddrinfo 127.0.0.2\nsocket.connect 127.0.0.3\n"


def imports_of_onnxruntime(tree):
    """The lines where a program imports it."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if any(name.split(".")[0] == "onnxruntime" for name in names):
            yield node.lineno


def test_onnxruntime_is_imported_in_one_place_alone():
    """Which switches its telemetry off before."""
    trees = {path.name: ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    importing = [name for name, tree in trees.items() if list(imports_of_onnxruntime(tree))]
    assert not importing, "import it with laplacianformer.export._onnxruntime"


def setting(tree):
    """The lines of a program that switch the telemetry off."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Call | ast.Assign)]
    return sorted(node.lineno for node in nodes if "ORT_DISABLE_TELEMETRY" in ast.unparse(node))


@pytest.mark.skipif(not (ROOT / "examples").is_dir(), reason="the tests run outside of a checkout")
def test_programs_beside_the_package_switch_its_telemetry_off_before_they_import_it():
    found = {}
    for path in [*(ROOT / "examples").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if lines := sorted(imports_of_onnxruntime(tree)):
            found[path.name] = min(setting(tree), default=lines[0]) < lines[0]
    assert found
    assert all(found.values()), found
    late = ast.parse("import onnxruntime\nimport os\nos.environ['ORT_DISABLE_TELEMETRY'] = '1'")
    assert not setting(late)[0] < next(imports_of_onnxruntime(late))
