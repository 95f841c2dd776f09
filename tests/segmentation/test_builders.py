"""Segmenters on our backbone and on others: shapes, padding, gradients, what they start from."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from laplacianformer._util.errors import InputError
from laplacianformer._util.tensor_files import write_tensors
from laplacianformer.segmentation import load_segmenter, save_segmenter, semantic_fpn, upernet
from laplacianformer.segmentation._builders import parameter_groups
from laplacianformer.training._feature_maps import padding_mask
from laplacianformer.weights import save_weights
from tests.segmentation import helpers

BUILDERS = {"semantic_fpn": semantic_fpn, "upernet": upernet}


@pytest.fixture(scope="module", params=list(BUILDERS))
def model(request: pytest.FixtureRequest) -> Any:
    return helpers.small(request.param)


@pytest.mark.parametrize("size", [(64, 64), (37, 53), (5, 3), (1, 1)])
def test_logits_have_the_size_of_the_image(model: Any, size: tuple[int, int]) -> None:
    with torch.inference_mode():
        logits = model(torch.randn(2, 3, *size))
    assert logits.shape == (2, 3, *size)
    assert logits.isfinite().all()


@pytest.mark.parametrize(
    ("backbone", "arguments"),
    [
        ("resnet10t", {}),
        ("convnext_atto", {}),  # whose maps are rounded down where ours are rounded up
        ("swin_tiny_patch4_window7_224", {"img_size": 64, "depths": (1, 1, 1, 1), "embed_dim": 24}),  # channels last
    ],
)
def test_any_feature_extractor_of_timm_will_do(backbone: str, arguments: dict[str, Any]) -> None:
    model = semantic_fpn(backbone, 3, backbone_args=arguments, channels=16, width=64).eval()
    with torch.inference_mode():
        assert model(torch.randn(1, 3, 59, 49)).shape == (1, 3, 59, 49)


def test_upernet_takes_another_backbone_and_learns() -> None:
    model = upernet("resnet10t", 3, channels=16)
    loss = model(torch.randn(2, 3, 70, 90)).square().mean()
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    with torch.inference_mode():
        assert model.eval()(torch.randn(1, 3, 59, 49)).shape == (1, 3, 59, 49)


def test_a_backbone_without_four_maps_is_refused() -> None:
    with pytest.raises(ValueError, match=r"feature maps of strides \[4, 8\]: expected four at the end"):
        semantic_fpn("laplacianformer_nano", 3, backbone_args={"stem_stride": 4, "out_indices": [0, 1]})
    with pytest.raises(ValueError, match="width=48: expected a multiple of 32"):
        semantic_fpn("laplacianformer_nano", 3, width=48)


def test_padding_does_not_change_an_image_of_a_batch() -> None:
    """Up to the convolutions of the decoder at the border, which see zeros beyond the image either way."""
    model = helpers.small()
    image = torch.randn(1, 3, 40, 48)
    padded = torch.cat([torch.nn.functional.pad(image, (0, 16, 0, 24), value=5.0), torch.randn(1, 3, 64, 64)])
    mask = padding_mask(torch.tensor([[40, 48], [64, 64]]), padded.shape[-2:])
    assert mask is not None
    assert mask[0].nonzero().amax(0).tolist() == [39, 47]
    with torch.inference_mode():
        alone = [features[0] for features in model.maps(image).values()]
        masked = [features[0] for features in model.maps(padded, mask).values()]
    for one, other in zip(alone, masked, strict=True):
        rows, columns = one.shape[1:]
        torch.testing.assert_close(other[:, :rows, :columns], one, rtol=1e-4, atol=1e-5)
        assert (other[:, rows:] == 0).all()
        assert (other[..., columns:] == 0).all()
    assert padding_mask(torch.tensor([[64, 64], [64, 64]]), padded.shape[-2:]) is None


def test_maps_that_are_filled_up_are_those_of_a_padded_image_with_its_mask() -> None:
    model, image = helpers.small(), torch.randn(1, 3, 37, 53)
    padded = torch.nn.functional.pad(image, (0, 11, 0, 27))
    mask = padding_mask(torch.tensor([[37, 53]]), padded.shape[-2:])
    with torch.inference_mode():
        torch.testing.assert_close(model(image), model(padded, mask)[..., :37, :53], rtol=1e-4, atol=1e-4)


def test_every_parameter_learns_and_belongs_to_one_group(model: Any) -> None:
    model.train()
    model(torch.randn(2, 3, 64, 64)).square().mean().backward()
    model.eval()
    silent = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not silent
    groups = parameter_groups(model, 0.05, 0.8)
    listed = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(listed) == sorted(id(parameter) for parameter in model.parameters())
    assert min(group.get("lr_scale", 1.0) for group in groups) < 1


# ---- weights ----


def test_a_segmenter_comes_back_from_its_file(model: Any, tmp_path: Path) -> None:
    save_segmenter(tmp_path / "model.safetensors", model, labels=helpers.CLASSES)
    loaded = load_segmenter(tmp_path / "model.safetensors")
    assert loaded.labels.names == tuple(helpers.CLASSES)
    image = torch.randn(1, 3, 33, 40)
    with torch.inference_mode():
        assert torch.equal(loaded.model(image), model(image))
    with pytest.raises(InputError, match="for a segmenter of 3 classes"):
        save_segmenter(tmp_path / "model.safetensors", model, labels=["one", "two"])


def test_a_segmenter_starts_from_a_classifier_or_from_one_of_other_classes(tmp_path: Path) -> None:
    classifier = timm.create_model("laplacianformer_nano", num_classes=2, **helpers.BACKBONE)
    save_weights(tmp_path / "classifier.safetensors", classifier, classes=["a", "b"], metadata={})
    from_classifier = helpers.small(weights=tmp_path / "classifier.safetensors", frozen_stages=4)
    given = classifier.state_dict()
    for name, tensor in from_classifier.maps.model.state_dict().items():
        assert torch.equal(tensor, given[name]), name

    save_segmenter(tmp_path / "segmenter.safetensors", from_classifier, labels=helpers.CLASSES)
    other = semantic_fpn(
        "laplacianformer_nano",
        5,
        tmp_path / "segmenter.safetensors",
        backbone_args=helpers.BACKBONE,
        **helpers.ARGS["semantic_fpn"],
    )
    assert torch.equal(other.decoder.p5.weight, from_classifier.decoder.p5.weight)
    assert other.classifier.weight.shape[0] == 5
    write_tensors(tmp_path / "detector.safetensors", {}, {"task": "detection"})
    with pytest.raises(InputError, match="expected a classifier or a segmenter of this package"):
        helpers.small(weights=tmp_path / "detector.safetensors")
