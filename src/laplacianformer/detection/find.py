"""What a detector finds in one picture."""

import torch
from torch import Tensor, nn

Prediction = dict[str, Tensor]  # boxes (N, 4), labels (N,), scores (N,) and, for masks, masks (N, H, W) of booleans


@torch.inference_mode()
def find_objects(model: nn.Module, image: Tensor) -> Prediction:
    """The objects in a picture (3, H, W) of bytes, on the CPU, by a detector in evaluation mode.

    Boxes and masks are in pixels of this picture. One picture at a time: in a batch it would be padded to the size of
    others, which the attention sees.
    """
    found = model([image / 255])[0]
    known = found["labels"] > 0  # RetinaNet's outputs for the background are never trained
    if "masks" in found:
        found["masks"] = found["masks"][:, 0] >= 0.5
    return {name: value[known].cpu() for name, value in found.items()}
