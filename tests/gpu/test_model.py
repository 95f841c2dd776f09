"""The model on a GPU: no waiting for it, CUDA graphs, autocast, torch.compile."""

import pytest
import timm
import torch

import laplacianformer  # noqa: F401  registers the models

DEVICE = "cuda"


@pytest.fixture(autouse=True)
def full_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are compared: cuDNN's convolutions in float32, not in TF32 as by default."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def build(training: bool = True) -> torch.nn.Module:
    torch.manual_seed(0)
    return timm.create_model("laplacianformer_nano", num_classes=10).to(DEVICE).train(training)


def images(size: int = 64) -> torch.Tensor:
    return torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(1)).to(DEVICE)


def train_step(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    loss.backward()
    return loss.detach()


def test_agrees_with_the_cpu():
    model, x = build(), images()
    train_step(model, x)
    gradients = [p.grad.cpu() for p in model.parameters()]
    other = build().cpu()
    train_step(other, x.cpu())
    for a, b in zip(gradients, (p.grad for p in other.parameters()), strict=True):
        assert (a - b).norm() <= 1e-2 * b.norm() + 1e-6


def test_never_waits_for_the_gpu():
    model, x = build(), images()
    train_step(model, x)
    torch.cuda.set_sync_debug_mode("error")
    try:
        train_step(model, x)
        with torch.inference_mode():
            model.eval()(x)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_step_of_training_runs_in_a_cuda_graph():
    model, copy, x = build(), build(), images()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            train_step(model, x)
    torch.cuda.current_stream().wait_stream(stream)
    model.load_state_dict(copy.state_dict())
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = train_step(model, x)
    x.copy_(images().flip(0))
    graph.replay()
    torch.testing.assert_close(loss, train_step(copy, x), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype):
    model, x = build(training=False), images()
    with torch.inference_mode():
        expected = model(x)
        with torch.autocast("cuda", dtype=dtype):
            out = model(x)
    assert (out.float() - expected).norm() <= 0.05 * expected.norm()


def test_compiles_whole_and_agrees():
    torch._dynamo.reset()
    model, copy, x = build(), build(), images()
    torch.testing.assert_close(
        train_step(torch.compile(model, fullgraph=True), x), train_step(copy, x), rtol=1e-3, atol=1e-5
    )
    for a, b in zip(model.parameters(), copy.parameters(), strict=True):
        assert (a.grad - b.grad).norm() <= 1e-2 * b.grad.norm() + 1e-6


def test_same_inputs_give_the_same_bits():
    def outcome() -> list[torch.Tensor]:
        model = build()
        return [train_step(model, images()), *(p.grad for p in model.parameters())]

    previous = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        assert all(torch.equal(a, b) for a, b in zip(outcome(), outcome(), strict=True))
    finally:
        torch.backends.cudnn.deterministic = previous
