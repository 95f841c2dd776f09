"""The gradients that a fused op computes by plain operations where it is observed."""

import torch

from laplacianformer.ops._gradients import gradients_by


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 4, generator=generator), torch.randn(3, 4, generator=generator)


def test_only_inputs_that_need_a_gradient_get_one() -> None:
    x, grad = inputs()
    wanted = x.clone().requires_grad_()
    found = gradients_by(lambda a, b, c: a * b + (0 if c is None else c), [x, wanted, None], grad)
    assert found[0] is None
    assert found[2] is None
    torch.testing.assert_close(found[1], grad * x, rtol=0, atol=0)


def test_one_tensor_given_twice_has_a_gradient_for_each() -> None:
    x, grad = inputs()
    x.requires_grad_()
    first, second = gradients_by(lambda a, b: a * b.detach() + 3 * b, [x, x], grad)
    torch.testing.assert_close(first, grad * x.detach(), rtol=0, atol=0)
    torch.testing.assert_close(second, 3 * grad, rtol=0, atol=0)


def test_there_is_a_graph_only_where_it_was_asked_for() -> None:
    x, grad = inputs()
    x.requires_grad_()
    with torch.no_grad():
        (plain,) = gradients_by(lambda a: a**3, [x], grad)
    assert plain is not None
    assert not plain.requires_grad
    (slope,) = gradients_by(lambda a: a**3, [x], grad)
    assert slope is not None
    (second,) = torch.autograd.grad(slope.sum(), x)
    torch.testing.assert_close(second, 6 * x.detach() * grad)


def test_autocast_of_the_caller_is_off_inside() -> None:
    x, grad = inputs()
    seen: list[torch.dtype] = []

    def product(a: torch.Tensor) -> torch.Tensor:
        seen.append((a @ a.t()).dtype)
        return a * 2

    with torch.autocast("cpu", dtype=torch.bfloat16):
        gradients_by(product, [x.requires_grad_()], grad)
    assert seen == [torch.float32]
