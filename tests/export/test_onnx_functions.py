"""The Laplacian kernel as ONNX: the definition, at every shape, in bounded memory."""

import json

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx", reason="install laplacianformer[export]")
onnxruntime = pytest.importorskip("onnxruntime", reason="install laplacianformer[export]")

from laplacianformer.export._onnx_functions import DOMAIN, FUNCTIONS, TILE_NUMBERS  # noqa: E402

SCALE = 4.0


def session(name, inputs, options=None):
    """One node that is one of the functions."""
    helper, single = onnx.helper, onnx.TensorProto.FLOAT
    node = helper.make_node(name, inputs, ["out"], domain=DOMAIN.domain, scale=SCALE)
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info(each, single, [None] * 3) for each in inputs],
        [helper.make_tensor_value_info("out", single, None)],
    )
    model = helper.make_model(
        graph,
        functions=[function.to_function_proto() for function in FUNCTIONS],
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN.domain, 1)],
        ir_version=9,
    )
    options = options or onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def kernel():
    return session("LaplacianKernel", ["x", "y"])


@pytest.fixture(scope="module")
def product():
    return session("LaplacianMatmul", ["x", "y", "values"])


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def expected_kernel(x, y):
    return torch.cdist(torch.from_numpy(x).double(), torch.from_numpy(y).double(), p=1.0).div(-SCALE).exp()


# More rows than a tile has, more columns, several matrices a tile, several tiles of matrices, one of everything.
SHAPES = [(1, 1, 1, 4), (2, 3000, 49, 32), (2, 49, 3000, 32), (1, 40, 1300, 64), (3, 7, 5, 8), (70, 49, 49, 32)]


@pytest.mark.parametrize(("matrices", "n", "m", "width"), SHAPES)
def test_kernel_and_product_are_the_definition(kernel, product, matrices, n, m, width):
    x, y, values = draw(matrices, n, width), draw(matrices, m, width, seed=1), draw(matrices, m, 6, seed=2)
    expected = expected_kernel(x, y)
    found = torch.from_numpy(kernel.run(None, {"x": x, "y": y})[0])
    assert found.shape == expected.shape
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=5e-6)
    found = torch.from_numpy(product.run(None, {"x": x, "y": y, "values": values})[0])
    bound = 5e-6 * float((expected @ torch.from_numpy(values).double().abs()).max())
    torch.testing.assert_close(found.double(), expected @ torch.from_numpy(values).double(), rtol=0, atol=bound)


def test_what_all_rows_have_in_common_costs_no_digits(kernel):
    x, y = draw(1, 30, 32) + 1000, draw(1, 20, 32, seed=1) + 1000
    found = torch.from_numpy(kernel.run(None, {"x": x, "y": y})[0])
    torch.testing.assert_close(found.double(), expected_kernel(x, y), rtol=0, atol=5e-6)


def test_no_tensor_of_all_differences_is_held(tmp_path):
    """For these sizes it would be 118 MB."""
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    profiled = session("LaplacianMatmul", ["x", "y", "values"], options)
    x, y, values = draw(1, 49, 32), draw(1, 18_816, 32, seed=1), draw(1, 18_816, 32, seed=2)
    profiled.run(None, {"x": x, "y": y, "values": values})
    with open(profiled.end_profiling()) as file:
        sizes = [int(event["args"]["output_size"]) for event in json.load(file) if "output_size" in event["args"]]
    assert TILE_NUMBERS < max(sizes) <= 4 * TILE_NUMBERS + 65536
