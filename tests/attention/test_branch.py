"""The global branch in one call, and its gradient in another: the same numbers as the ops one by one, and only where
nobody can tell."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from laplacianformer import LaplacianAttention
from laplacianformer.ops import backends, branch, cpu_extension, use_backend

pytestmark = pytest.mark.skipif(backends()["cpu"] is not None, reason=f"no C++ extension: {backends()['cpu']}")

# The last four have a landmark a token.
SIZES = [(56, 56), (14, 9), (8, 7), (30, 31), (7, 60), (3, 200), (1, 50), (7, 7), (5, 6), (1, 3), (1, 1)]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"gain": "learned", "rope": False},
    {"gain": 4.0, "grid": 4},
    {"tied": True, "scale": 0.7},
]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of each call that was made in place of the ops."""
    made: list[str] = []

    def noted(name: str) -> Any:
        original = getattr(branch, name)

        def call(*args: Any) -> Any:
            made.append(name)
            return original(*args)

        return call

    for name in ("evaluated", "trained"):
        monkeypatch.setattr(branch, name, noted(name))
    return made


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Fresh memory holds NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


def layer(**settings: Any) -> LaplacianAttention:
    torch.manual_seed(0)
    made = LaplacianAttention(64, 2, **settings).eval()
    if made.whitening.kind == "running":
        made.whitening.running_var.uniform_(1e-4, 1e-1)
    return made


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("settings", [*SETTINGS, {"whitening": None, "gain": 4.0, "grid": 4}])
def test_as_exact_as_one_by_one(
    size: tuple[int, int], settings: dict[str, Any], calls: list[str], poisoned: None
) -> None:
    attention = layer(**settings)
    tokens = torch.randn(2, size[0] * size[1], 64)
    with torch.inference_mode():
        together = attention(tokens, size)
    assert calls == ["evaluated"]
    one_by_one = attention(tokens, size).detach()
    exact = attention.double()(tokens.double(), size).detach()
    error, allowed = ((one - exact).abs().max() for one in (together, one_by_one))
    assert error <= 2 * allowed + 1e-7


def random_projection(size: tuple[int, int], batch: int = 2, heads: int = 2, width: int = 32) -> torch.Tensor:
    """Queries, keys and values of a fused projection: (3, batch, heads, tokens, width)."""
    return torch.randn(batch, size[0] * size[1], 3, heads, width).permute(2, 0, 3, 1, 4)


def step(
    attention: LaplacianAttention, qkv: torch.Tensor, size: tuple[int, int], grad: torch.Tensor, name: str = "mix"
) -> dict[str, torch.Tensor]:
    """What a training step of a copy of the layer computes: the result, all gradients, the running variance."""
    attention = copy.deepcopy(attention).to(qkv.dtype).train()
    qkv = qkv.detach().requires_grad_()
    out = getattr(attention, name)(*qkv.unbind(0), size=size)
    out.backward(grad.to(out.dtype))
    assert qkv.grad is not None
    found = {"out": out.detach(), "queries": qkv.grad[0], "keys": qkv.grad[1], "values": qkv.grad[2]}
    found["variance"] = attention.whitening.running_var
    if isinstance(attention.gain, torch.Tensor):
        assert attention.gain.grad is not None
        found["gain"] = attention.gain.grad
    return found


Numbers = dict[str, torch.Tensor]


def assert_as_exact(found: Numbers, other: Numbers, exact: Numbers) -> None:
    """Errors of the size of another's. Where features of a query and of a landmark nearly agree, rounding may turn the
    sign in a gradient: few numbers are far off then."""
    for name, expected in exact.items():
        largest = expected.abs().max()
        error, allowed = ((numbers[name] - expected).abs().flatten() for numbers in (found, other))
        far, far_allowed = error > 1e-3 * largest, allowed > 1e-3 * largest
        assert far.sum() <= far_allowed.sum() + 0.001 * far.numel(), name
        assert error[~far].max() <= 4 * allowed[~far_allowed].max() + 1e-5 * largest, name


@pytest.mark.parametrize("level", cpu_extension.levels() if backends()["cpu"] is None else ())
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("settings", SETTINGS)
def test_training_is_as_exact_as_one_by_one(
    size: tuple[int, int], settings: dict[str, Any], level: str, calls: list[str], poisoned: None
) -> None:
    attention, qkv = layer(**settings), random_projection(size)
    grad = torch.randn(2, size[0] * size[1], 2, 32).transpose(1, 2)
    with cpu_extension.use_level(level):
        together = step(attention, qkv, size, grad)
        assert calls == ["trained"]
        one_by_one = step(attention, qkv, size, grad, "mix_one_by_one")
    exact = step(attention, qkv.double(), size, grad, "mix_one_by_one")
    assert calls == ["trained"]
    assert_as_exact(together, one_by_one, exact)


@pytest.mark.parametrize(("heads", "width"), [(1, 4), (3, 12), (2, 20), (5, 64)])
@pytest.mark.parametrize("size", [(9, 8), (2, 2), (20, 13)])
def test_training_with_heads_of_any_width(heads: int, width: int, size: tuple[int, int], poisoned: None) -> None:
    torch.manual_seed(1)
    attention, qkv = LaplacianAttention(heads * width, heads), random_projection(size, 3, heads, width)
    grad = torch.randn(3, heads, size[0] * size[1], width)
    together, exact = step(attention, qkv, size, grad), step(attention, qkv.double(), size, grad)
    assert_as_exact(together, step(attention, qkv, size, grad, "mix_one_by_one"), exact)


def test_training_twice_gives_the_same_bits_on_any_number_of_threads() -> None:
    attention, qkv, grad = layer(), random_projection((30, 31)), torch.randn(2, 2, 930, 32)
    before = torch.get_num_threads()
    runs = []
    try:
        for threads in (1, 2, 3, 1):
            torch.set_num_threads(threads)
            runs.append(step(attention, qkv, (30, 31), grad))
    finally:
        torch.set_num_threads(before)
    for run in runs[1:]:
        for name, found in run.items():
            assert torch.equal(found, runs[0][name]), name


def test_training_reads_any_layout() -> None:
    """Dense or not, with the gradient of a sum, whose strides are 0, and one whose last dimension is not dense."""
    attention, qkv = layer(), random_projection((10, 10))
    strided = qkv.transpose(-1, -2).contiguous().transpose(-1, -2)
    for grad in (torch.ones(()).expand(2, 2, 100, 32), torch.randn(2, 2, 32, 100).transpose(-1, -2)):
        expected = step(attention, qkv.contiguous(), (10, 10), grad.contiguous())
        for layout in (qkv, strided):
            for name, found in step(attention, layout, (10, 10), grad).items():
                assert torch.equal(found, expected[name]), name


def test_each_gradient_alone() -> None:
    """Only what wants one gets one, and it is the same."""
    size, grad = (9, 9), torch.randn(2, 2, 81, 32)
    attention = layer(gain="learned").train()
    inputs = [t.contiguous() for t in random_projection(size)]

    def gradients(wanted: list[bool]) -> list[torch.Tensor | None]:
        *qkv, gain = (t.detach().requires_grad_(w) for t, w in zip([*inputs, attention.gain], wanted, strict=True))
        attention.gain = torch.nn.Parameter(gain, requires_grad=wanted[3])
        attention.mix(*qkv, size).backward(grad)
        return [t.grad for t in (*qkv, attention.gain)]

    together = gradients([True] * 4)
    for i in range(4):
        alone = gradients([i == j for j in range(4)])
        assert [g is None for g in alone] == [i != j for j in range(4)]
        assert torch.equal(alone[i], together[i])  # type: ignore[arg-type]


def test_the_variance_enters_the_running_average_once(calls: list[str]) -> None:
    attention, other = layer().train(), layer().train()
    tokens = torch.randn(2, 144, 64, requires_grad=True)
    attention(tokens, (12, 12)).sum().backward()
    assert calls == ["trained"]
    assert attention.whitening.num_batches_tracked == 1
    other.mix_one_by_one(*other.project(tokens, (12, 12)), size=(12, 12))
    torch.testing.assert_close(attention.whitening.running_var, other.whitening.running_var)
    before = attention.whitening.running_var.clone()
    attention.whitening.paused = True
    attention(tokens, (12, 12))
    assert torch.equal(attention.whitening.running_var, before)


def test_checkpointing_gives_the_same_gradients(calls: list[str]) -> None:
    tokens = torch.randn(2, 144, 64)
    grads = []
    for recompute in (False, True):
        attention, x = layer().train(), tokens.clone().requires_grad_()
        out = checkpoint(attention, x, (12, 12), use_reentrant=False) if recompute else attention(x, (12, 12))
        out.square().sum().backward()
        grads.append(x.grad)
    assert len(calls) == 3
    assert torch.equal(*grads)


def test_batched_gradients_and_graphs_of_gradients_go_by_ops() -> None:
    attention, size = layer(gain="learned").train(), (9, 9)
    qkv = [t.contiguous().requires_grad_() for t in random_projection(size)]
    wanted = [*qkv, attention.gain]
    grads = torch.randn(3, 2, 2, 81, 32)
    out = attention.mix(*qkv, size)
    one_each = [torch.autograd.grad(out, wanted, grad, retain_graph=True) for grad in grads]
    batched = torch.autograd.grad(out, wanted, grads, retain_graph=True, is_grads_batched=True)
    for found, expected in zip(batched, map(torch.stack, zip(*one_each, strict=True)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    graph = torch.autograd.grad(out, wanted, grads[0], create_graph=True)
    for found, expected in zip(graph, one_each[0], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        graph[0].sum().backward()


@pytest.mark.parametrize("changed", ["evaluation", "gain", "autocast", "counted"])
@pytest.mark.parametrize("size", [(9, 9), (7, 7)])
def test_gradients_by_ops_are_those_of_the_step_that_was(changed: str, size: tuple[int, int]) -> None:
    """Whatever has become of the layer since."""
    attention, count = layer(gain="learned").train(), size[0] * size[1]
    qkv = [t.contiguous().requires_grad_() for t in random_projection(size)]
    grad = torch.randn(2, 2, count, 32)
    wanted = [*qkv, torch.tensor([0.5, 2.0], requires_grad=True) if changed == "gain" else attention.gain]
    if changed == "gain":
        out = torch.func.functional_call(Mixing(attention, size), {"attention.gain": wanted[3]}, (qkv,))
    else:
        out = attention.mix(*qkv, size)
    expected = torch.autograd.grad(out, wanted, grad, retain_graph=True)
    if changed == "evaluation":
        attention.eval()
    if changed == "counted":
        with FlopCounterMode(display=False) as counter:
            found = torch.autograd.grad(out, wanted, grad)
        assert counter.get_total_flops() > 0
    else:
        with torch.autocast("cpu", torch.bfloat16, enabled=changed == "autocast"):
            found = torch.autograd.grad(out, wanted, grad, create_graph=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert attention.whitening.num_batches_tracked == 1


class Mixing(torch.nn.Module):
    def __init__(self, attention: LaplacianAttention, size: tuple[int, int]) -> None:
        super().__init__()
        self.attention, self.size = attention, size

    def forward(self, qkv: list[torch.Tensor]) -> torch.Tensor:
        return self.attention.mix(*qkv, self.size)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gradients_in_vmap() -> None:
    attention, size = layer().train(), (9, 9)
    qkv = [t.contiguous().requires_grad_() for t in random_projection(size)]
    grads = torch.randn(3, 2, 2, 81, 32)
    out = attention.mix(*qkv, size)
    expected = [torch.autograd.grad(out, qkv, grad, retain_graph=True) for grad in grads]
    found = torch.func.vmap(lambda grad: torch.autograd.grad(out, qkv, grad, retain_graph=True))(grads)
    for one, others in zip(found, zip(*expected, strict=True), strict=True):
        torch.testing.assert_close(one, torch.stack(others), rtol=1e-4, atol=1e-5)


def test_no_gradient_arrives() -> None:
    class Dropped(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> None:
            return None

    attention, tokens = layer().train(), torch.randn(1, 81, 64, requires_grad=True)
    q, k, v = attention.project(tokens, (9, 9))
    (Dropped.apply(attention.mix(q, k, v, (9, 9))).sum() + v.sum()).backward()
    assert tokens.grad is not None
    assert tokens.grad.isfinite().all()


def test_what_was_kept_may_come_back_in_another_layout() -> None:
    attention, qkv, grad = layer(gain="learned"), random_projection((10, 9)), torch.randn(2, 2, 90, 32)
    expected = step(attention, qkv, (10, 9), grad)

    def turned(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.mT.contiguous().mT if tensor.ndim > 1 else tensor

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, turned):
        found = step(attention, qkv, (10, 9), grad)
    for name, numbers in found.items():
        assert torch.equal(numbers, expected[name]), name
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.half(), lambda tensor: tensor)
    with hooks, pytest.raises(RuntimeError, match="float32"):
        step(attention, qkv, (10, 9), grad)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.bool, torch.float8_e4m3fn])
def test_other_numbers_go_one_by_one(dtype: torch.dtype, calls: list[str]) -> None:
    qkv = torch.randint(0, 2, (3, 1, 2, 81, 32)).to(dtype)
    with torch.inference_mode():
        found = layer().mix(*qkv, (9, 9))
        expected = layer().mix(*qkv.float(), (9, 9))
    assert calls == ["evaluated"]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("training", [False, True])
def test_shapes_that_do_not_fit_are_no_memory_error(training: bool, calls: list[str]) -> None:
    attention = layer().train(training)
    with torch.inference_mode(), pytest.raises(RuntimeError):
        attention.mix(*torch.randn(3, 1, 2, 100, 32), (40, 40))
    with torch.inference_mode(), pytest.raises(ValueError, match="same last dimension"):
        attention.mix(*torch.randn(3, 1, 6, 100, 32), (10, 10))
    assert not calls


def test_the_mode_of_the_whitening_decides(calls: list[str]) -> None:
    """Also where it is not that of the layer: what is to be synchronised is not taken alone."""
    attention = layer(sync=True)
    attention.whitening.train()
    attention(torch.randn(1, 81, 64), (9, 9))
    assert not calls


def test_equal_tokens_have_no_gradient_by_distance() -> None:
    """The mean of equal tokens is the token, to the bit: signs of differences are 0."""
    attention = layer(rope=False)
    for size in [(9, 9), (20, 13), (56, 56)]:
        qkv = torch.randn(3, 1, 2, 1, 32).expand(3, 1, 2, size[0] * size[1], 32).clone()
        qkv[0] = qkv[1]
        assert step(attention, qkv, size, torch.randn(1, 2, size[0] * size[1], 32))["queries"].abs().max() == 0


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")
@pytest.mark.parametrize("training", [False, True])
def test_forward_derivatives_are_refused_and_not_dropped(training: bool) -> None:
    attention, (q, k, v) = layer().train(training), torch.randn(3, 1, 2, 81, 32)
    with torch.autograd.forward_ad.dual_level(), torch.no_grad():
        dual = torch.autograd.forward_ad.make_dual(v, torch.ones_like(v))
        with pytest.raises(NotImplementedError, match="only backward derivatives"):
            attention.mix(q, k, dual, (9, 9))


def test_tied_queries_and_keys_are_counted_once_in_graphs_of_gradients() -> None:
    attention, tokens = layer(tied=True).train(), torch.randn(1, 81, 64, requires_grad=True)
    out = attention(tokens, (9, 9)).sum()
    (plain,) = torch.autograd.grad(out, tokens, retain_graph=True)
    (graph,) = torch.autograd.grad(out, tokens, create_graph=True)
    torch.testing.assert_close(graph, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_slices_and_any_number_of_threads(threads: int, calls: list[str]) -> None:
    attention = layer()
    q, k, v = torch.randn(2, 100, 3, 2, 32).permute(2, 0, 3, 1, 4)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            sliced = attention.mix(q, k, v, (10, 10))
            whole = attention.mix(q.contiguous(), k.contiguous(), v.contiguous(), (10, 10))
            strided = attention.mix(*(t.transpose(-1, -2).contiguous().transpose(-1, -2) for t in (q, k, v)), (10, 10))
    finally:
        torch.set_num_threads(before)
    assert len(calls) == 3
    assert torch.equal(sliced, whole)
    assert torch.equal(sliced, strided)


def test_images_of_a_batch_do_not_touch_each_other(calls: list[str]) -> None:
    attention, tokens = layer(), torch.randn(3, 12 * 11, 64)
    with torch.inference_mode():
        mixed = attention.mix(*attention.project(tokens, (12, 11)), (12, 11))
        first = attention.mix(*(part[1:2] for part in attention.project(tokens, (12, 11))), (12, 11))
    assert len(calls) == 2
    torch.testing.assert_close(mixed[1:2], first, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel": "gaussian"},
        {"gram": "cross"},
        {"solver": "cholesky"},
        {"landmarks": "conv"},
        {"whitening": "instance"},
        {"grid": 12},
        {"grid": None},
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_other_forms_go_one_by_one(settings: dict[str, Any], training: bool, calls: list[str]) -> None:
    with torch.inference_mode():
        layer(**settings).train(training)(torch.randn(1, 169, 64), (13, 13))
    assert not calls


def test_where_someone_looks_on_it_goes_one_by_one(calls: list[str]) -> None:
    attention, tokens = layer(), torch.randn(1, 100, 64)
    attention(tokens, (10, 10))  # gradients in evaluation
    layer(sync=True).train()(tokens, (10, 10))
    layer(whitening=None).train()(tokens, (10, 10))
    with torch.inference_mode():
        attention.double()(tokens.double(), (10, 10))
        attention.float()
        attention(tokens[:0], (10, 10))
        with use_backend("reference"):
            attention(tokens, (10, 10))
        with FlopCounterMode(display=False) as counter:
            attention(tokens, (10, 10))
        assert counter.get_flop_counts()["Global"][torch.ops.laplacianformer.laplacian_matmul] > 0
        attention.train()
        with use_backend("reference"):
            attention(tokens, (10, 10))
        with FlopCounterMode(display=False) as counter:
            attention(tokens, (10, 10))
        assert counter.get_flop_counts()["Global"][torch.ops.laplacianformer.laplacian_kernel] > 0
        assert not calls
        attention(tokens, (10, 10))
        attention.eval()(tokens, (10, 10))
        assert calls == ["trained", "evaluated"]


def test_under_autocast(calls: list[str]) -> None:
    """The branch itself stays in float32."""
    attention, tokens = layer(), torch.randn(1, 100, 64)
    with torch.inference_mode():
        exact = attention(tokens, (10, 10))
        with torch.autocast("cpu", torch.bfloat16):
            rounded = attention(tokens, (10, 10))
    assert calls == ["evaluated"] * 2
    torch.testing.assert_close(rounded.float(), exact, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("level", cpu_extension.levels() if backends()["cpu"] is None else ())
@pytest.mark.parametrize("size", [(20, 13), (9, 8), (7, 7)])
@pytest.mark.parametrize("rope", [False, True])
def test_short_numbers_are_widened_as_they_are_read(
    dtype: torch.dtype, level: str, size: tuple[int, int], rope: bool, calls: list[str], poisoned: None
) -> None:
    """Nothing but the result is rounded to them."""
    attention, qkv = layer(rope=rope), random_projection(size).to(dtype)
    with torch.inference_mode(), cpu_extension.use_level(level):
        short = attention.mix(*qkv, size)
        wide = attention.mix(*qkv.float(), size)
    assert calls == ["evaluated"] * 2
    assert short.dtype == dtype
    assert torch.equal(short, wide.to(dtype))


def test_a_dead_token_stays_seen() -> None:
    """NaN goes where it went: into everything that looks at its landmark."""
    attention, tokens = layer(), torch.randn(1, 100, 64)
    tokens[0, 5] = float("nan")
    with torch.inference_mode():
        assert attention(tokens, (10, 10)).isnan().all()


def test_a_learned_gain_alone_gets_its_gradient() -> None:
    """With everything else frozen, also in evaluation."""
    layer = LaplacianAttention(16, 2, grid=2, gain="learned").eval()
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name == "gain")
    layer(torch.randn(1, 16, 16), (4, 4)).square().sum().backward()
    assert layer.gain.grad is not None
    assert layer.gain.grad.abs().min() > 0
