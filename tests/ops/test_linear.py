"""linear against its definition in float64: by oneDNN and by PyTorch's own function; and when each is used."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from laplacianformer import ops
from laplacianformer.ops.linear import blas, cpu, onednn
from tests.ops.helpers import BACKENDS, DTYPES, assert_matches, in_float64, layouts, leaves
from tests.pairwise import pairwise

# Leading dimensions and the two widths.
SHAPES = [
    ((2, 37), 16, 40),
    ((), 3, 5),
    ((1,), 1, 1),
    ((0,), 4, 8),
    ((2, 0, 3), 4, 8),
    ((5,), 4, 0),
    ((65,), 33, 7),
    ((2, 3, 4), 7, 64),
]


def exact(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return (x[..., None, :] * weight).sum(-1) + bias


def parts(leading: tuple[int, ...], d: int, width: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return leaves((*leading, d), (width, d), (width,), dtype=dtype)


def results(given: list[Tensor]) -> list[Tensor]:
    """The output and all gradients."""
    out = ops.linear(*given)
    return [out.detach(), *torch.autograd.grad(out, given, out.detach().sin())]


@pairwise(
    {"backend": BACKENDS, "shape": SHAPES, "dtype": DTYPES, "products": ["blas", "onednn"]},
    indirect=["backend", "products"],
)
@pytest.mark.usefixtures("poisoned_memory")
def test_values_and_gradients_match_float64(shape, dtype, backend, products):
    assert_matches(lambda *t: ops.linear(*t, backend=backend), exact, parts(*shape, dtype=dtype), 4)


@pytest.mark.parametrize("shape", [((3, 49), 64, 192), ((2, 1100), 24, 72), ((1, 2100), 72, 24), ((49,), 2048, 24)])
@pytest.mark.usefixtures("onednn_products", "poisoned_memory")
def test_products_of_the_size_of_a_model_match_float64(shape) -> None:
    assert_matches(ops.linear, exact, parts(*shape), 4)


def test_without_a_bias(products: str) -> None:
    x, weight, _ = parts((9,), 4, 12)
    assert_matches(lambda x, weight: ops.linear(x, weight), lambda x, weight: x @ weight.mT, [x, weight], 4)


def test_memory_layout_does_not_change_the_result(products: str) -> None:
    x, weight, bias = (tensor.detach() for tensor in parts((3, 20), 16, 40))
    expected = results([tensor.clone().requires_grad_() for tensor in (x, weight, bias)])
    image = x.mT.unflatten(2, (4, 5)).contiguous(memory_format=torch.channels_last).flatten(2).mT
    for name, given in {**layouts(x), "channels last": image}.items():
        for other in (weight, weight.mT.contiguous().mT):
            found = results([tensor.detach().requires_grad_() for tensor in (given, other, bias)])
            for one, two in zip(found, expected, strict=True):
                torch.testing.assert_close(one, two, msg=name)


def test_expanded_inputs_and_gradients(products: str) -> None:
    x, weight, bias = (tensor.detach() for tensor in parts((20,), 16, 40))
    given = [x[0].expand(2, 20, 16), weight, bias[:1].expand(40)]
    torch.testing.assert_close(ops.linear(*given), F.linear(*given))
    leaf = x.requires_grad_()
    (found,) = torch.autograd.grad(ops.linear(leaf, weight, bias).sum(), leaf)  # an expanded gradient
    torch.testing.assert_close(found, weight.sum(0).expand(20, 16))


@pytest.mark.parametrize("needed", range(3))
def test_only_what_needs_a_gradient_gets_one_and_it_is_the_same(needed: int, products: str) -> None:
    given = parts((2, 20), 16, 40)
    every = torch.autograd.grad(ops.linear(*given).square().sum(), given)
    frozen = [tensor.detach().requires_grad_(index == needed) for index, tensor in enumerate(given)]
    ops.linear(*frozen).square().sum().backward()
    assert [tensor.grad is not None for tensor in frozen] == [index == needed for index in range(3)]
    assert torch.equal(frozen[needed].grad, every[needed])


def test_gradients_have_the_layout_of_their_parameters(products: str) -> None:
    for widths in ((16, 40), (40, 16)):
        given = parts((30,), *widths)
        for grad, tensor in zip(results(given)[1:], given, strict=True):
            assert grad.stride() == tensor.stride()


# The products of `laplacianformer_tiny` at 224 pixels, by stage: tokens, and the two widths.
OF_TINY = [(3136, 64, 192), (784, 1024, 128), (196, 320, 1280), (49, 512, 512), (49, 2048, 512)]


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("shape", OF_TINY, ids=str)
@pytest.mark.usefixtures("threads", "onednn_products")
def test_same_bits_for_every_number_of_threads(shape) -> None:
    tokens, d, width = shape
    given = parts((2, tokens), d, width)
    torch.set_num_threads(1)
    expected = results(given)
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        for one, other in zip(results(given), expected, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("shape", OF_TINY, ids=str)
@pytest.mark.usefixtures("threads")
def test_a_matrix_has_the_same_bits_whatever_else_is_in_the_batch(shape, count) -> None:
    """By the rule of this machine: it must not look at the size of the batch."""
    torch.set_num_threads(count)
    tokens, d, width = shape
    x, weight, bias = (tensor.detach() for tensor in parts((7, tokens), d, width))
    alone = [ops.linear(matrix[None], weight, bias)[0] for matrix in x]
    for batch in (2, 7):
        together = ops.linear(x[:batch], weight, bias)
        assert all(torch.equal(one, other) for one, other in zip(together, alone, strict=False))


def test_derivatives_of_gradients_match_float64(products: str) -> None:
    given = parts((9,), 4, 12)

    def second(function, tensors):
        slopes = torch.autograd.grad(function(*tensors).pow(3).sum(), tensors, create_graph=True)
        return torch.autograd.grad(sum(slope.square().sum() for slope in slopes), tensors, materialize_grads=True)

    for one, other in zip(second(ops.linear, given), second(exact, in_float64(given)), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-4 * other.abs().max().item())


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")  # by torch's own jvp
def test_transforms_batched_gradients_and_counters_see_the_function_of_torch(products: str) -> None:
    given, grads = parts((9,), 4, 12), torch.randn(3, 9, 12)
    batched = torch.autograd.grad(ops.linear(*given), given, grads, is_grads_batched=True)
    for index, grad in enumerate(grads):
        for one, many in zip(torch.autograd.grad(ops.linear(*given), given, grad), batched, strict=True):
            torch.testing.assert_close(many[index], one)
    x, weight, bias = (tensor.detach() for tensor in given)
    _, slope = torch.func.jvp(lambda x: ops.linear(x, weight, bias), (x,), (x,))
    torch.testing.assert_close(slope, x @ weight.mT)
    torch.testing.assert_close(torch.func.vmap(lambda x: ops.linear(x, weight, bias))(x), F.linear(x, weight, bias))
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        ops.linear(*given).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * 9 * 4 * 12


def test_compilers_see_the_function_of_torch(products: str) -> None:
    seen = []

    def record(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    given = [tensor.detach() for tensor in parts((9,), 4, 12)]
    torch.compile(ops.linear, backend=record, fullgraph=True)(*given)
    assert any("linear" in name for name in seen)
    assert not any("pointwise" in name for name in seen)


def test_autocast_rounds_as_it_does_for_linear_layers(products: str) -> None:
    x, weight, bias = (tensor.detach() for tensor in parts((9,), 4, 12))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ops.linear(x, weight, bias), F.linear(x, weight, bias))


# ---- the rule ----

# As they are outside of tests.
LEAST_WORK, MISSING = onednn._LEAST_WORK, onednn._missing.__wrapped__


def reason(x: Tensor, weight: Tensor) -> str | None:
    return cpu.check(x, weight, None)


@pytest.mark.usefixtures("onednn_products")
def test_the_rule_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "_LEAST_WORK", LEAST_WORK)
    x, weight = torch.ones(4, 784, 64), torch.ones(192, 64)
    assert reason(x, weight) is None
    assert reason(x.double(), weight) == "it takes float32, got torch.float64, torch.float32"
    assert reason(x[:, :9], weight) == "the products are small"
    assert "meta" in str(reason(x.to("meta"), weight))
    with torch.autocast("cpu", torch.bfloat16):
        assert reason(x, weight) == "autocast is on"
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert "torch.backends.mkldnn" in str(reason(x, weight))


@pytest.mark.usefixtures("onednn_products")
@pytest.mark.parametrize(
    ("vendor", "level", "used"),
    [
        ("AuthenticAMD", "avx512", True),
        ("AuthenticAMD", "avx2", False),
        ("GenuineIntel", "avx512", False),
        ("", "avx512", False),
    ],
)
def test_onednn_is_used_on_cpus_on_which_it_is_known_to_be_faster(monkeypatch, vendor, level, used) -> None:
    monkeypatch.setattr(onednn, "_vendor", lambda: vendor)
    monkeypatch.setattr(onednn.cpu_extension, "levels", lambda: ("baseline", level))
    assert (MISSING() is None) == used


def test_a_torch_without_the_product_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    assert "without" in MISSING()


@pytest.mark.usefixtures("onednn_products")
def test_both_libraries_compute_the_same_products_and_add_to_a_total() -> None:
    grad, x, total = torch.randn(2100, 24), torch.randn(2100, 40), torch.randn(24, 40)
    for left, right, start in ((grad, x, total), (x, grad, total.mT.contiguous())):
        one, other = (library.weight_gradient(left, right, start.clone()) for library in (blas, onednn))
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-3)
    out = torch.full((2100, 40), torch.nan)
    assert onednn.product(grad, total.t(), None, out) is out
    torch.testing.assert_close(out, grad @ total, rtol=1e-5, atol=1e-4)


def test_shapes_that_do_not_fit_are_refused() -> None:
    x, weight, bias = (tensor.detach() for tensor in parts((9,), 4, 12))
    for wrong in ((x[:, :3], weight, bias), (x, weight, bias[:3]), (x, bias, bias), (torch.tensor(1.0), weight, bias)):
        with pytest.raises(ValueError, match=r"linear: expected x \(\.\.\., d\), weight \(width, d\)"):
            ops.linear(*wrong)
