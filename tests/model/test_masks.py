"""Images padded to one size have the features that each has alone."""

import pytest
import timm
import torch
from torch import Tensor

import laplacianformer  # noqa: F401

SIZES = [(64, 80), (50, 61), (33, 96)]


def batch(fill: float = 0.0) -> tuple[Tensor, Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    alone = [torch.randn(3, *size, generator=generator) for size in SIZES]
    images, mask = torch.full((3, 3, 96, 128), fill), torch.zeros(3, 96, 128, dtype=torch.bool)
    for index, (height, width) in enumerate(SIZES):
        images[index, :, :height, :width], mask[index, :height, :width] = alone[index], True
    return images, mask, alone


@pytest.mark.parametrize(
    ("name", "attention", "fill"),
    [
        ("laplacianformer_nano", "laplacian", float("nan")),
        ("laplacianformer_tiny", "laplacian", 7.0),
        ("laplacianformer_nano", "laplacian", 0.0),
        ("laplacianformer_nano", "softmax", float("nan")),
        ("laplacianformer_nano", "nystromformer", float("nan")),
    ],
)
def test_features_do_not_depend_on_the_padding(name: str, attention: str, fill: float) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name, attention=attention, num_classes=0, global_pool="").eval()
    images, mask, alone = batch(fill)
    with torch.inference_mode():
        padded = model.forward_intermediates(images, mask=mask, intermediates_only=True)
        for index, image in enumerate(alone):
            expected = model.forward_intermediates(image[None], intermediates_only=True)
            for found, one in zip(padded, expected, strict=True):
                height, width = one.shape[2:]
                torch.testing.assert_close(found[index : index + 1, :, :height, :width], one, rtol=1e-3, atol=1e-4)
                outside = found[index].clone()
                outside[:, :height, :width] = 0
                assert not outside.any(), "beside the image there is nothing"


def test_without_a_mask_the_padding_would_matter() -> None:
    """What the mask is for: without it, landmarks average over the padding."""
    torch.manual_seed(0)
    model = timm.create_model("laplacianformer_nano", num_classes=0, global_pool="").eval()
    images, _, alone = batch()
    with torch.inference_mode():
        padded = model.forward_intermediates(images, intermediates_only=True)[-1]
        one = model.forward_intermediates(alone[1][None], intermediates_only=True)[-1]
    assert not torch.allclose(padded[1:2, :, : one.shape[2], : one.shape[3]], one, rtol=1e-2, atol=1e-2)


def test_training_with_a_mask_and_recomputation_gives_the_same_gradients() -> None:
    images, mask, _ = batch()
    found = []
    for recompute in (False, True):
        torch.manual_seed(0)
        model = timm.create_model("laplacianformer_nano", num_classes=0, global_pool="").train()
        model.set_grad_checkpointing(recompute)
        model.forward_intermediates(images, mask=mask, intermediates_only=True)[-1].square().mean().backward()
        found.append([p.grad for p in model.parameters()] + [b.clone() for b in model.buffers()])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


@pytest.mark.parametrize(
    "mask", [torch.ones(3, 96, 128), torch.ones(3, 96, 127, dtype=torch.bool)], ids=["dtype", "size"]
)
def test_masks_that_do_not_fit_are_refused(mask: Tensor) -> None:
    model = timm.create_model("laplacianformer_nano", num_classes=0, global_pool="")
    with pytest.raises(ValueError, match=r"mask must be bool, \(3, 96, 128\), one per pixel, got"):
        model.forward_intermediates(batch()[0], mask=mask)
    with pytest.raises(TypeError, match=r"mask must be a tensor of bool, .*, got list"):
        model.forward_intermediates(batch()[0], mask=[[True]])
