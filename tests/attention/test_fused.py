"""The attention in one C++ call: in evaluation the numbers of the composition, and only where nobody can tell."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from laplacianformer import LaplacianAttention, ops
from laplacianformer.ops import _cpu_extension as cpu_extension
from laplacianformer.ops import use_backend
from tests.attention.fused import LEVELS, MISSING, SETTINGS, SIZES, composed, layer, random_projection

pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"no C++ extension: {MISSING}")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("settings", [*SETTINGS, {"whitening": None, "gain": 4.0, "grid": 4}, {"qk_norm": True}])
def test_as_exact_as_the_composition(
    size: tuple[int, int], settings: dict[str, Any], calls: list[str], poisoned: None
) -> None:
    attention = layer(**settings)
    tokens = torch.randn(2, size[0] * size[1], 64)
    with torch.inference_mode():
        together = attention(tokens, size)
    assert calls == ["evaluated"]
    with composed():
        separate = attention(tokens, size).detach()
    exact = attention.double()(tokens.double(), size).detach()
    error, allowed = ((one - exact).abs().max() for one in (together, separate))
    assert error <= 2 * allowed + 1e-7


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.bool, torch.float8_e4m3fn])
def test_other_numbers_are_refused(dtype: torch.dtype, calls: list[str]) -> None:
    qkv = torch.randint(0, 2, (3, 1, 2, 81, 32)).to(dtype)
    with torch.inference_mode(), pytest.raises(TypeError, match="laplacian_attention: q must be one of float32"):
        layer().mix(*qkv, (9, 9))
    assert not calls


@pytest.mark.parametrize("training", [False, True])
def test_shapes_that_do_not_fit_are_no_memory_error(training: bool, calls: list[str]) -> None:
    attention = layer().train(training)
    with torch.inference_mode(), pytest.raises(ValueError, match="does not hold 100 tokens"):
        attention.mix(*torch.randn(3, 1, 2, 100, 32), (40, 40))
    with torch.inference_mode(), pytest.raises(ValueError, match="cells must be at least 1 and at most"):
        ops.laplacian_attention(*torch.randn(3, 1, 2, 100, 32), (10, 10), (7, 11), 4.0)
    assert not calls


def test_the_mode_of_the_whitening_decides(calls: list[str]) -> None:
    """Also where it is not that of the layer: what is to be synchronised is not taken alone."""
    attention = layer(whitening="synced")
    attention.whitening.train()
    attention(torch.randn(1, 81, 64), (9, 9))
    assert not calls


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")
@pytest.mark.parametrize("training", [False, True])
def test_forward_derivatives_are_not_dropped(training: bool) -> None:
    attention, (q, k, v) = layer().train(training), torch.randn(3, 1, 2, 81, 32)
    with torch.autograd.forward_ad.dual_level(), torch.no_grad():
        dual = torch.autograd.forward_ad.make_dual(v, torch.ones_like(v))
        out = attention.mix(q, k, dual, (9, 9))
        change = torch.autograd.forward_ad.unpack_dual(out).tangent
    with torch.no_grad():  # it is linear in the values
        torch.testing.assert_close(change, attention.mix(q, k, torch.ones_like(v), (9, 9)), rtol=1e-3, atol=1e-4)


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


@pytest.mark.parametrize("training", [False, True])
def test_more_landmarks_than_fit_the_cache_are_left_to_the_composition(training: bool, calls: list[str]) -> None:
    with torch.inference_mode():
        layer(grid=12).train(training)(torch.randn(1, 169, 64), (13, 13))
    assert not calls


def test_where_someone_looks_on_it_is_the_composition(calls: list[str]) -> None:
    attention, tokens = layer(), torch.randn(1, 100, 64)
    attention(tokens, (10, 10))  # gradients in evaluation
    layer(whitening="synced").train()(tokens, (10, 10))
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


@pytest.mark.parametrize("qk_norm", [False, True])
def test_under_autocast(qk_norm: bool, calls: list[str]) -> None:
    """The attention itself stays in float32."""
    attention, tokens = layer(qk_norm=qk_norm), torch.randn(1, 100, 64)
    with torch.inference_mode():
        exact = attention(tokens, (10, 10))
        with torch.autocast("cpu", torch.bfloat16):
            rounded = attention(tokens, (10, 10))
    assert calls == ["evaluated"] * 2
    torch.testing.assert_close(rounded.float(), exact, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("level", LEVELS)
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
