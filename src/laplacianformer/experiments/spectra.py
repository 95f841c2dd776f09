"""Measures of singular values."""

import torch
from torch import Tensor


def effective_rank(singular: Tensor) -> Tensor:
    """The exponential of the entropy of the singular values as fractions of their sum: (..., n) -> (...)."""
    return torch.special.entr(singular / singular.sum(-1, keepdim=True)).sum(-1).exp()
