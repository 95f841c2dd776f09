"""One layer on sequences, images and volumes, with leading tokens: what they have in common, and bad input."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from laplacianformer.attention import ATTENTIONS, LaplacianAttention

DIM, HEADS = 32, 2


def with_fewer_axes(layer: LaplacianAttention, axis: int, **options: Any) -> LaplacianAttention:
    """The layer for grids without an axis that has length one, with the same weights."""
    grid = tuple(cells for index, cells in enumerate(layer.grid) if index != axis)
    fewer = LaplacianAttention(DIM, HEADS, axes=layer.axes - 1, grid=grid, **options)
    state = {**layer.state_dict(), "_extra_state": fewer.get_extra_state()}  # of another grid
    state["dwc.weight"] = state["dwc.weight"].select(2 + axis, 1)
    state["whitening.running_var"] = state["whitening.running_var"].mean(1 + axis)
    fewer.load_state_dict(state)
    return fewer


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize(("size", "axis"), [((1, 50), 0), ((50, 1), 1), ((1, 9, 11), 0), ((9, 1, 11), 1)], ids=str)
def test_an_axis_of_length_one_is_no_axis(size: tuple[int, ...], axis: int, training: bool) -> None:
    torch.manual_seed(0)
    layer = LaplacianAttention(DIM, HEADS, axes=len(size), grid=(4, 5, 3)[: len(size)], rope=False).train(training)
    layer.whitening.running_var.uniform_(1e-3, 1e-1)
    fewer = with_fewer_axes(layer, axis, rope=False).train(training)
    x = torch.randn(2, torch.Size(size).numel(), DIM)
    left = tuple(length for index, length in enumerate(size) if index != axis)
    torch.testing.assert_close(fewer(x, left), layer(x, size), rtol=1e-5, atol=1e-6)


def frames_of(layer: LaplacianAttention) -> Tensor:
    """What five equal frames give, (B, 5, tokens, DIM)."""
    frame = torch.randn(2, 1, 48, DIM, generator=torch.Generator().manual_seed(0))
    return layer(frame.expand(-1, 5, -1, -1).flatten(1, 2), (5, 6, 8)).unflatten(1, (5, 48))


def test_equal_frames_stay_equal() -> None:
    """Without rotary positions; at the ends of the video, the convolution sees fewer frames."""
    layer = LaplacianAttention(DIM, HEADS, axes=3, rope=False).train()
    out = frames_of(layer)
    torch.testing.assert_close(out[:, 1:-1], out[:, 1:2].expand(-1, 3, -1, -1), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(out[:, 0], out[:, 1], atol=1e-3)

    torch.nn.init.zeros_(layer.dwc.weight)
    out = frames_of(layer)
    torch.testing.assert_close(out, out[:, :1].expand_as(out), rtol=1e-5, atol=1e-6)


def test_positions_of_different_axes_differ() -> None:
    """With rotary positions, a token moved along any axis is another token."""
    for axes, size in ((1, (12,)), (2, (4, 3)), (3, (2, 3, 2))):
        layer = LaplacianAttention(DIM, HEADS, axes=axes, grid=2).eval()
        x = torch.randn(1, 12, DIM)
        assert not torch.allclose(
            layer.mix(*layer.project(x, size), size).flip(2),
            layer.mix(*layer.project(x.flip(1), size), size),
            atol=1e-4,
        )


@pytest.mark.parametrize(("axes", "landmarks"), [(1, 64), (2, 49), (3, 64)])
def test_the_default_grid_has_about_as_many_landmarks_on_any_number_of_axes(axes: int, landmarks: int) -> None:
    size = (100,) * axes
    cells = LaplacianAttention(DIM, HEADS, axes=axes).cells(size)
    assert torch.Size(cells).numel() == landmarks


def permuted(layer: LaplacianAttention, order: list[int]) -> LaplacianAttention:
    layer = copy.deepcopy(layer)
    layer.whitening.prefix_running_var.copy_(layer.whitening.prefix_running_var[:, order])
    return layer


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("size", [(14, 9), (4, 5)], ids=["solved", "exact"])
def test_permuting_leading_tokens_permutes_their_outputs(size: tuple[int, int], training: bool) -> None:
    torch.manual_seed(0)
    layer = LaplacianAttention(DIM, HEADS, prefix=3).train(training)
    layer.whitening.prefix_running_var.uniform_(1e-3, 1e-1)
    x, order = torch.randn(2, 3 + size[0] * size[1], DIM), [2, 0, 1]
    moved = torch.cat([x[:, order], x[:, 3:]], dim=1)
    out, other = layer(x, size), permuted(layer, order)(moved, size)
    torch.testing.assert_close(other[:, :3], out[:, order], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(other[:, 3:], out[:, 3:], rtol=1e-4, atol=1e-5)


def test_with_every_token_a_landmark_leading_tokens_are_part_of_the_exact_form() -> None:
    layer = LaplacianAttention(DIM, HEADS, prefix=2, rope=False, whitening=None, gain=3.0).double()
    x = torch.randn(1, 2 + 20, DIM, dtype=torch.float64)
    q, k, v = layer.project(x, (4, 5))
    kernel = (-torch.cdist(q, k, p=1) / 4).exp()
    z = (1 + 3.0 * (kernel - kernel.mean(-1, keepdim=True))) / 22
    torch.testing.assert_close(layer.mix(q, k, v, (4, 5)), z @ v)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_mixer_takes_leading_tokens_and_any_number_of_axes(name: str) -> None:
    for axes, size in ((1, (90,)), (2, (11, 9)), (3, (4, 5, 6))):
        layer = ATTENTIONS[name](DIM, HEADS, axes=axes, prefix=2)
        x = torch.randn(2, 2 + torch.Size(size).numel(), DIM, requires_grad=True)
        out = layer(x, size)
        out.square().sum().backward()
        assert out.shape == x.shape
        assert x.grad is not None
        assert x.grad.isfinite().all()
        assert x.grad[:, :2].abs().sum() > 0, "leading tokens are keys of the others"


@pytest.mark.parametrize(
    ("size", "training"), [((117,), True), ((13, 9), False), ((13, 9), True), ((3, 13, 3), True)], ids=str
)
@pytest.mark.slow
def test_compiled_in_one_graph(size: tuple[int, ...], training: bool) -> None:
    """With a mask and a leading token: outputs, buffers and every gradient."""
    layer = LaplacianAttention(DIM, HEADS, axes=len(size), prefix=1).train(training)
    x, mask = torch.randn(2, 118, DIM), torch.rand(2, 118) < 0.7
    other = copy.deepcopy(layer)
    torch._dynamo.reset()  # sizes that differ from those of another test would be symbols
    compiled = torch.compile(lambda layer, x, mask: layer(x, size, mask), fullgraph=True, backend="aot_eager")
    inputs = [x.clone().requires_grad_(), x.clone().requires_grad_()]
    outputs = [compiled(layer, inputs[0], mask), other(inputs[1], size, mask)]
    for output in outputs:
        output.square().sum().backward()
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dict(layer.named_buffers()), dict(other.named_buffers()), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-3, atol=1e-4)
    assert inputs[0].grad is not None
    assert not inputs[0].grad[~mask].any()
    expected = {name: parameter.grad for name, parameter in other.named_parameters()}
    found = {name: parameter.grad for name, parameter in layer.named_parameters()}
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


class Sequences(torch.nn.Module):
    def __init__(self, prefix: int = 1) -> None:
        super().__init__()
        self.attention = LaplacianAttention(DIM, HEADS, axes=1, grid=16, prefix=prefix)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.attention(x, (x.shape[1] - self.attention.prefix,), mask)


@pytest.mark.parametrize(
    "sizes",
    [
        {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO(min=4, max=4096)},
        {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", min=4, max=4096)},
    ],
    ids=["automatic", "named"],
)
@pytest.mark.slow
def test_exported_for_any_length_and_mask(sizes: dict[int, Any]) -> None:
    model = Sequences().eval()
    x, mask = torch.randn(2, 101, DIM), torch.rand(2, 101) < 0.7
    program = torch.export.export(model, (x, mask), dynamic_shapes=(sizes, sizes)).module()
    for batch, tokens in ((2, 101), (3, 300), (2, 20), (2, 9), (1, 4)):
        x, mask = torch.randn(batch, tokens, DIM), torch.rand(batch, tokens) < 0.7
        torch.testing.assert_close(program(x, mask), model(x, mask), rtol=1e-4, atol=1e-5)


class Volumes(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = LaplacianAttention(DIM, HEADS, axes=3, grid=2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.attention(x.flatten(1, 3), x.shape[1:4], mask.flatten(1))


@pytest.mark.slow
def test_volumes_are_exported_for_every_size() -> None:
    model, sizes = Volumes().eval(), dict.fromkeys(range(4), torch.export.Dim.AUTO)
    x, mask = torch.randn(2, 4, 6, 5, DIM), torch.rand(2, 4, 6, 5) < 0.7
    program = torch.export.export(model, (x, mask), dynamic_shapes=(sizes, sizes)).module()
    for shape in ((2, 4, 6, 5), (3, 5, 9, 7)):
        x, mask = torch.randn(*shape, DIM), torch.rand(shape) < 0.7
        torch.testing.assert_close(program(x, mask), model(x, mask), rtol=1e-4, atol=1e-5)


class MaskedImages(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = LaplacianAttention(DIM, HEADS, grid=3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.attention(x.flatten(1, 2), mask.shape[1:], mask.flatten(1))


@pytest.mark.slow
def test_exported_with_a_mask_and_named_sides_of_at_least_two() -> None:
    model = MaskedImages().eval()
    sides = {1: torch.export.Dim("height", min=2, max=64), 2: torch.export.Dim("width", min=2, max=64)}
    example = (torch.randn(2, 7, 9, DIM), torch.rand(2, 7, 9) < 0.7)
    program = torch.export.export(model, example, dynamic_shapes=(sides, sides)).module()
    for size in ((2, 2), (3, 3), (2, 5), (20, 3)):
        x, mask = torch.randn(2, *size, DIM), torch.rand(2, *size) < 0.7
        torch.testing.assert_close(program(x, mask), model(x, mask), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_exported_with_a_mask_and_a_named_length_of_at_least_two() -> None:
    model = Sequences(prefix=0).eval()
    length = {1: torch.export.Dim("length", min=2)}
    example = (torch.randn(2, 50, DIM), torch.rand(2, 50) < 0.7)
    program = torch.export.export(model, example, dynamic_shapes=(length, length)).module()
    for tokens in (2, 3, 16, 17, 300):
        x, mask = torch.randn(2, tokens, DIM), torch.arange(tokens) < torch.tensor([[1], [tokens]])
        torch.testing.assert_close(program(x, mask), model(x, mask), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"axes": 4}, ValueError, "axes must be 1, 2 or 3, got 4"),
        ({"axes": 0}, ValueError, "axes must be 1, 2 or 3, got 0"),
        ({"axes": True}, ValueError, "axes must be 1, 2 or 3, got True"),
        ({"axes": 2.0}, ValueError, "axes must be 1, 2 or 3, got 2.0"),
        ({"axes": [1]}, ValueError, r"axes must be 1, 2 or 3, got \[1\]"),
        ({"prefix": -1}, ValueError, "prefix must be an integer of at least 0, got -1"),
        ({"prefix": 1.5}, ValueError, "prefix must be an integer of at least 0, got 1.5"),
        ({"prefix": False}, ValueError, "prefix must be an integer of at least 0, got False"),
        ({"grid": torch.ones(2)}, TypeError, "grid must be an integer, got Tensor"),
        ({"grid": (7,)}, ValueError, r"grid must be a number, or one for each of 2 axes, got \(7,\)"),
        ({"grid": "fine"}, ValueError, "grid must be a number, or one for each of 2 axes, got 'fine'"),
        ({"axes": 3, "dim": 8}, ValueError, "divisible by 2 and of at least 6, got 4: pass rope=False"),
    ],
    ids=str,
)
def test_bad_options_are_refused(arguments: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        LaplacianAttention(**{"dim": DIM, "num_heads": HEADS, **arguments})


def test_sizes_that_do_not_fit_are_refused() -> None:
    layer = LaplacianAttention(DIM, HEADS, prefix=2)
    with pytest.raises(ValueError, match=r"size \(3, 4\) does not hold 10 tokens after 2 leading ones \(prefix\)"):
        layer(torch.randn(1, 12, DIM), (3, 4))
    for size in (3, (3.0, 4.0), None, "ab"):
        with pytest.raises(TypeError, match="size must be 2 integers, the lengths of the grid"):
            layer(torch.randn(1, 14, DIM), size)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"size \(12,\) has 1 axes, this layer has axes=2"):
        layer(torch.randn(1, 14, DIM), (12,))
    with pytest.raises(ValueError, match=r"expected prefix=2 leading tokens and a grid of \(1, 1\), got 1 tokens"):
        layer(torch.randn(1, 1, DIM), (1, 1))
