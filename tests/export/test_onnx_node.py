"""The operator for onnxruntime: against the definition in float64, for every number of threads, and without torch."""

import ctypes
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("onnx", reason="install laplacianformer[export]")
onnxruntime = pytest.importorskip("onnxruntime", reason="install laplacianformer[export]")

from laplacianformer import ops  # noqa: E402
from laplacianformer.export import onnx_library  # noqa: E402
from laplacianformer.ops import _cpu_extension as cpu_extension  # noqa: E402
from tests.export.nodes import Case, run, session  # noqa: E402

pytestmark = pytest.mark.skipif(ops.backends()["cpu"] is not None, reason=str(ops.backends()["cpu"]))

STAGE = Case(size=(56, 56), grid=(7, 7), heads=2, width=32, batch=1)
CASES = [
    STAGE,
    Case(size=(7, 7), grid=(7, 7), heads=3, width=32, batch=3),
    Case(size=(13, 9), grid=(7, 7), width=20, prefix=2),
    Case(size=(3, 50), grid=(7, 7), width=12, optional=("gains",)),
    Case(size=(1, 1), grid=(4, 4), heads=1, width=4, optional=("variance",)),
    Case(size=(5, 2), grid=(7, 7), heads=1, width=36, prefix=1, optional=()),
    Case(size=(11, 8), grid=(5, 3), width=7, rope=False, numbers={"iterations": 12, "scale": 2.5}),
    Case(size=(301,), grid=(64,), width=6),
    Case(size=(4, 5, 6), grid=(2, 7, 3), width=14),
    Case(size=(12, 12), grid=(9, 14), width=4, prefix=2),
]


@pytest.mark.parametrize("level", cpu_extension.levels() if ops.backends()["cpu"] is None else ())
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.size}-{case.grid}-{case.prefix}")
def test_it_computes_the_definition(case, level, monkeypatch):
    monkeypatch.setenv("LAPLACIANFORMER_CPU_LEVEL", level)
    inputs = case.inputs()
    found = run(session(case.node()), inputs).double()
    torch.testing.assert_close(found, case.expected(inputs), rtol=1e-4, atol=2e-5)


def test_an_empty_batch_gives_an_empty_result():
    case = replace(STAGE, batch=0)
    assert run(session(case.node()), case.inputs()).shape == (0, 56 * 56, 64)


@pytest.mark.parametrize("case", [STAGE, replace(STAGE, batch=5, size=(40, 31)), CASES[2]], ids=str)
def test_same_bits_for_every_number_of_threads(case):
    inputs = case.inputs()
    results = [run(session(case.node(), threads), inputs) for threads in (1, 2, 3, 1)]
    assert all(torch.equal(result, results[0]) for result in results)


def test_it_has_the_bits_of_the_torch_extension_where_nothing_is_rotated():
    case = replace(STAGE, rope=False)
    inputs = case.inputs()
    q, k, v = (part.transpose(1, 2) for part in torch.from_numpy(inputs["qkv"]).unflatten(-1, (3, 2, 32)).unbind(2))
    gains, variance = torch.from_numpy(inputs["gains"]), torch.from_numpy(inputs["variance"])
    expected, _ = ops.laplacian_attention(q, k, v, case.size, case.grid, 4.0, gain=gains, variance=variance)
    assert torch.equal(run(session(case.node()), inputs), expected.transpose(1, 2).flatten(2))


def test_an_image_has_the_same_bits_whatever_else_is_in_the_batch():
    case = replace(STAGE, batch=3)
    opened, inputs = session(case.node()), case.inputs()
    together = run(opened, inputs)
    alone = [run(opened, inputs | {"qkv": inputs["qkv"][i : i + 1]}) for i in range(3)]
    assert torch.equal(together, torch.cat(alone))


def test_one_session_takes_every_size_in_any_order():
    opened = session(STAGE.node())
    for size in ((56, 56), (7, 7), (3, 9), (56, 56), (7, 7), (1, 1)):
        case = replace(STAGE, size=size)
        inputs = case.inputs(seed=size[1])
        torch.testing.assert_close(run(opened, inputs).double(), case.expected(inputs), rtol=1e-4, atol=2e-5)


def test_a_node_takes_heads_of_every_width_in_turn():
    opened = session(STAGE.node())
    for width in (32, 4, 64, 8):
        case = replace(STAGE, width=width, size=(14, 14))
        inputs = case.inputs()
        torch.testing.assert_close(run(opened, inputs).double(), case.expected(inputs), rtol=1e-4, atol=2e-5)


def test_calls_from_several_threads_and_sessions_do_not_disturb_each_other():
    opened = [session(STAGE.node(), threads) for threads in (1, 2)]
    cases = [replace(STAGE, size=size) for size in ((24, 30), (30, 24), (7, 7), (56, 56))]
    given = [case.inputs(seed) for seed, case in enumerate(cases)]
    expected = [run(opened[0], inputs) for inputs in given]
    with ThreadPoolExecutor(8) as pool:
        jobs = [(i % 4, pool.submit(run, opened[i % 3 == 0], given[i % 4])) for i in range(64)]
        assert all(torch.equal(job.result(), expected[i]) for i, job in jobs)


# A program that has onnxruntime and numpy, and a copy of the library.
ALONE = """
import sys
import numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(sys.argv[1])
session = onnxruntime.InferenceSession(sys.argv[2], options, providers=["CPUExecutionProvider"])
(out,) = session.run(None, dict(numpy.load(sys.argv[3])))
numpy.save(sys.argv[4], out)
assert not {"torch", "laplacianformer"} & sys.modules.keys()
with open("/proc/self/maps") as maps:
    assert "libtorch" not in maps.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads which libraries are loaded from /proc")
def test_a_copy_of_the_library_runs_without_torch(tmp_path):
    case = CASES[2]
    inputs = case.inputs()
    library, file, given, out = (tmp_path / name for name in ("copy.so", "node.onnx", "in.npz", "out.npy"))
    library.write_bytes(onnx_library().read_bytes())
    file.write_bytes(case.node())
    np.savez(given, **inputs)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", ALONE, *map(str, (library, file, given, out))]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert torch.equal(torch.from_numpy(np.load(out)), run(session(case.node()), inputs))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": np.array([56, 55])}, "the size does not hold 3136 tokens"),
        ({"size": np.array([2**58, 2**5 * 49])}, "the size does not hold 3136 tokens"),
        ({"size": np.array([3136])}, "expected a size with one number for each axis of the grid, got (1)"),
        ({"size": np.array([-56, -56])}, "expected a size of 2 axes, each at least 1"),
        ({"qkv": np.zeros((1, 3136, 191), np.float32)}, "(batch, tokens, 3 * channels), got (1, 3136, 191)"),
        ({"qkv": np.zeros((1, 3136, 63), np.float32)}, "21 channels don't fit 2 heads"),
        ({"variance": np.zeros((2, 48), np.float32)}, "a variance of shape (heads, landmarks), got (2, 48)"),
        ({"gains": np.zeros(3, np.float32)}, "gains of shape (heads), got (3)"),
    ],
)
def test_inputs_that_do_not_fit_are_errors_that_say_so(change, message):
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument) as error:
        session(STAGE.node()).run(None, STAGE.inputs() | change)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": [12, 11]}, "at most 128 landmarks: those of the grid"),
        ({"grid": [2**32, 2**32]}, "at most 128 landmarks"),
        ({"prefix": 80}, "at most 128 landmarks"),
        ({"grid": [7, 0]}, "grid, heads and iterations must be at least 1"),
        ({"grid": [2, 2, 2, 2]}, "one to three axes"),
        ({"scale": -1.0}, "scale, eps and variance_eps must be greater than 0"),
        ({"theta": None}, "theta"),
    ],
)
def test_a_node_that_can_not_be_computed_is_not_loaded(change, message):
    with pytest.raises(Exception, match=message):
        session(STAGE.node(**change))


def test_an_onnxruntime_that_is_too_old_is_told_what_it_needs():
    """It has no table of functions of the version that is asked for, and the first function of all versions."""
    get, version = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32), ctypes.CFUNCTYPE(ctypes.c_void_p)
    said, number = [], ctypes.create_string_buffer(b"1.16.3")
    create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)(lambda _, text: said.append(text) or 1)
    table = (ctypes.c_void_p * 8)(ctypes.cast(create, ctypes.c_void_p))

    class Base(ctypes.Structure):
        _fields_ = [("get", get), ("version", version)]

    base = Base(
        get(lambda asked: ctypes.addressof(table) if asked == 1 else 0), version(lambda: ctypes.addressof(number))
    )
    register = ctypes.CDLL(str(onnx_library())).RegisterCustomOps
    register.restype = ctypes.c_void_p
    assert register(None, ctypes.byref(base)) == 1
    assert said == [b"the operators of laplacianformer need onnxruntime 1.17 or newer, this is 1.16.3"]


def test_an_instruction_set_that_is_not_there_is_an_error(monkeypatch):
    monkeypatch.setenv("LAPLACIANFORMER_CPU_LEVEL", "avx1024")
    with pytest.raises(Exception, match="LAPLACIANFORMER_CPU_LEVEL is avx1024, this machine has"):
        session(STAGE.node())
