"""What a detector finds in one image."""

from typing import Any

import torch
from torch import Tensor, nn

from laplacianformer._util.errors import InputError
from laplacianformer.inspect._finite import first_not_finite, is_finite

Prediction = dict[str, Tensor]  # boxes (N, 4), labels (N,), scores (N,) and, for masks, masks (N, H, W) of booleans


# Parts of torchvision's detectors whose outputs are checked: what comes after them drops boxes that are not finite,
# so that a detector that is broken finds nothing.
_WATCHED = ("transform", "backbone", "head", "rpn.head", "roi_heads.box_predictor", "roi_heads.mask_predictor")


@torch.inference_mode()
def find_objects(model: nn.Module, image: Tensor) -> Prediction:
    """The objects in an image (3, H, W) of bytes, by a detector in evaluation mode. The result is on the CPU.

    Boxes and masks are in pixels of this image. One image at a time: in a batch it would be padded to the size of the
    others, and the convolutions of the pyramid see padding. Outputs that are not finite are an InputError that names
    the layer.
    """
    images, fine = [image / 255], True

    def look(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal fine
        fine = fine and is_finite(output)

    hooks = [module.register_forward_hook(look) for name, module in model.named_modules() if name in _WATCHED]
    try:
        found = model(images)[0]
    finally:
        for hook in hooks:
            hook.remove()
    if not fine or not is_finite(found):
        raise InputError(f"the detector gives outputs that are not finite: {first_not_finite(model, images)}")
    known = found["labels"] > 0  # RetinaNet's outputs for the background are never trained
    if "masks" in found:
        found["masks"] = found["masks"][:, 0] >= 0.5
    return {name: value[known].cpu() for name, value in found.items()}
