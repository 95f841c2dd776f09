"""torch.compile, torch.export, autocast, torch.func, and float32 against float64."""

import os
import shutil

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.export import Dim

from tests.model.helpers import NAMES, ONE_STAGE, TWO_STAGES, create, gradients, images


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def assert_same_training_state(model, expected):
    for name, gradient in gradients(expected).items():
        torch.testing.assert_close(gradients(model)[name], gradient, msg=name, rtol=1e-3, atol=1e-4)
    for name, buffer in expected.named_buffers():
        torch.testing.assert_close(dict(model.named_buffers())[name], buffer, msg=name)


@pytest.mark.slow
def test_one_compiled_graph_serves_many_sizes_forward_and_backward():
    """Tracing symbolic sizes takes long, so one stage is compiled: the stages are alike."""
    eager, model = create(**ONE_STAGE).train(), create(**ONE_STAGE).train()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    graphs = []
    for height, width in ((40, 56), (64, 48), (33, 71)):
        x = images(height, width)
        out, expected = compiled(x), eager(x)
        torch.testing.assert_close(out, expected)
        out.square().sum().backward()
        expected.square().sum().backward()
        graphs.append(counter.frame_count)
    assert graphs[0] == graphs[-1]
    assert_same_training_state(model, eager)


@pytest.mark.slow
def test_a_whole_model_compiles_without_a_graph_break():
    eager, model = create(**TWO_STAGES).train(), create(**TWO_STAGES).train()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    out, expected = compiled(images(64)), eager(images(64))
    torch.testing.assert_close(out, expected)
    out.square().sum().backward()
    expected.square().sum().backward()
    assert_same_training_state(model, eager)


@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="inductor needs a C++ compiler")
@pytest.mark.slow
def test_inductor_computes_what_eager_computes():
    eager, model = create(**ONE_STAGE).train(), create(**ONE_STAGE).train()
    out, expected = torch.compile(model, fullgraph=True)(images(32)), eager(images(32))
    torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-4)
    out.square().sum().backward()
    expected.square().sum().backward()
    assert_same_training_state(model, eager)


@pytest.mark.slow
def test_one_exported_graph_serves_every_size_from_2_x_2_tokens():
    """The last stride here is 4: 5 to 2048 pixels in both directions (33 for tiny to huge), any batch. Of named
    dimensions the exporter proves that the graph holds for all sizes; ONNX and AOTInductor have Dim.AUTO."""
    model = create(**TWO_STAGES)
    sizes = {0: Dim("batch"), 2: Dim("height", min=5, max=2048), 3: Dim("width", min=5, max=2048)}
    program = torch.export.export(model, (images(48, 64),), dynamic_shapes=(sizes,))
    run = program.module()
    # Up to 28 pixels the second stage has as many landmarks as tokens, up to 14 the first has: nothing is solved.
    for height, width in ((48, 64), (224, 224), (28, 28), (29, 27), (14, 14), (13, 40), (5, 5), (33, 47), (9, 600)):
        x = images(height, width, batch=1 + height % 3)
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_static_export_branches_on_its_size():
    """With all sizes known, the exact case needs no solve in the exported graph either."""
    model = create(**TWO_STAGES)
    for size, solves in ((12, 0), (24, 1), (64, 2)):
        program = torch.export.export(model, (images(size),))
        nodes = [node for module in program.graph_module.modules() for node in module.graph.nodes]
        assert sum("newton_schulz" in str(node.target) for node in nodes) == solves
        torch.testing.assert_close(program.module()(images(size)), model(images(size)))


@pytest.mark.parametrize("attention", ["laplacian", "softmax"])
def test_bfloat16_autocast_stays_close_to_float32(attention):
    model, x = create(attention=attention).train(), images(64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x)
    assert out.dtype == torch.bfloat16
    out.float().square().sum().backward()
    low = {name: gradient.clone() for name, gradient in gradients(model).items()}
    model.zero_grad()
    expected = model(x)
    expected.square().sum().backward()
    assert (out - expected).norm() < 0.05 * expected.norm()
    assert all(gradient.isfinite().all() for gradient in low.values())
    flat = torch.cat([gradient.flatten() for gradient in low.values()])
    reference = torch.cat([gradient.flatten() for gradient in gradients(model).values()])
    assert torch.nn.functional.cosine_similarity(flat, reference, dim=0) > 0.98


def test_functional_call_takes_other_weights():
    model, other, x = create(**TWO_STAGES), create(**TWO_STAGES, seed=1), images(32)
    out = torch.func.functional_call(model, other.state_dict(), (x,))
    with torch.no_grad():
        assert torch.equal(out, other(x))
    assert not torch.equal(out, model(x))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_float32_error_of_the_logits(name):
    """Relative to float64, in the norm of the logits, at 64 pixels (2 x 2 tokens in the last stage)."""
    model, x = create(name), images(64, batch=1)
    with torch.no_grad():
        single = model(x).double()
        double = model.double()(x.double())
    error = ((single - double).norm() / double.norm()).item()
    assert 0 < error < 2e-5
