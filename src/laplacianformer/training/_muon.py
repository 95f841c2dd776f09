"""Muon: orthogonalised momentum for matrices, AdamW for everything else."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

# Five steps of x <- a x + b (x x^T) x + c (x x^T)^2 x move singular values between 0.003 and 1 to between 0.7 and 1.2.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5
_LEAST_SIDE = 4  # smaller matrices, and depth-wise convolutions, are left to AdamW


class Muon(torch.optim.Optimizer):
    """https://kellerjordan.github.io/posts/muon, in the dtype of the gradient.

    Those of timm and torch multiply in bfloat16, for which most CPUs have no instructions. Steps have the size of
    AdamW's (https://arxiv.org/abs/2502.16982), so that learning rate and weight decay mean the same as there.
    Parameters must be whole: a shard of a matrix says nothing about its singular values.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "betas": betas, "eps": eps}
        )
        if any(isinstance(parameter, DTensor) for group in self.param_groups for parameter in group["params"]):
            raise ValueError("Muon needs whole matrices, not shards of them (FSDP)")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            rest = []
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if is_matrix(parameter):
                    self._step_of_matrix(parameter, group)
                else:
                    rest.append(parameter)
            self._step_of_rest(rest, group)
        return loss

    def _step_of_matrix(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].lerp_(gradient, 1 - group["momentum"])
        ahead = gradient.lerp(state["momentum"], group["momentum"])
        update = orthogonal(ahead.flatten(1))
        size = 0.2 * max(update.shape) ** 0.5
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(update.view_as(parameter), alpha=-group["lr"] * size)

    def _step_of_rest(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        if not parameters:
            return
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                    "mean": torch.zeros_like(parameter),
                    "square": torch.zeros_like(parameter),
                }
        states = [self.state[parameter] for parameter in parameters]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        adamw(
            parameters,
            gradients,
            [state["mean"] for state in states],
            [state["square"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def is_matrix(parameter: Tensor) -> bool:
    """Whether it is the weight of a linear layer or a convolution: a matrix of (outputs, everything else)."""
    return parameter.ndim >= 2 and min(parameter.shape[:2]) >= _LEAST_SIDE


def orthogonal(matrix: Tensor) -> Tensor:
    """The matrix with its singular values moved close to 1; those below a thousandth of its norm may stay smaller."""
    a, b, c = _COEFFICIENTS
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / wide.norm().clamp(min=torch.finfo(matrix.dtype).tiny)
    for _ in range(_STEPS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide is matrix else x.T
