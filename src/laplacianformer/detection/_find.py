"""What a detector finds in one image."""

import torch
from torch import Tensor, nn

Prediction = dict[str, Tensor]  # boxes (N, 4), labels (N,), scores (N,) and, for masks, masks (N, H, W) of booleans


@torch.inference_mode()
def find_objects(model: nn.Module, image: Tensor) -> Prediction:
    """The objects in an image (3, H, W) of bytes, by a detector in evaluation mode. The result is on the CPU.

    Boxes and masks are in pixels of this image. One image at a time: in a batch it would be padded to the size of the
    others, and attention sees padding.
    """
    found = model([image / 255])[0]
    known = found["labels"] > 0  # RetinaNet's outputs for the background are never trained
    if "masks" in found:
        found["masks"] = found["masks"][:, 0] >= 0.5
    return {name: value[known].cpu() for name, value in found.items()}
