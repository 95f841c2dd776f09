"""Which size of images a model is built for."""

from torch import nn


def fixed_size(model: nn.Module) -> tuple[int, int] | None:
    """Height and width of the only images that a model takes, as many vision transformers do; None: it takes others."""
    embedding = getattr(model, "patch_embed", None)
    size = getattr(embedding, "img_size", None)
    if size is None or not getattr(embedding, "strict_img_size", False):
        return None
    height, width = size
    return height, width
