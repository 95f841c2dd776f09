"""What a converted model is trained to match."""

from torch import Tensor
from torch.nn import functional as F


def divergence(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Kullback-Leibler divergence from the teacher's probabilities, per image, times temperature^2."""
    ours, theirs = (part.float().div(temperature).log_softmax(-1) for part in (logits, teacher))
    return F.kl_div(ours, theirs, reduction="batchmean", log_target=True) * temperature**2


def labelled_loss(logits: Tensor, targets: Tensor, no_label: int) -> Tensor:
    """Cross-entropy of the images with a label; zero if there is none."""
    total = F.cross_entropy(logits.float(), targets, ignore_index=no_label, reduction="sum")
    return total / (targets != no_label).sum().clamp(min=1)
