"""RetinaNet and Mask R-CNN on any backbone: levels, anchors, what is frozen, and their initial weights."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

from laplacianformer._util.errors import InputError
from laplacianformer.attention._whitening import Whitening
from laplacianformer.detection import load_detector, mask_rcnn, parameter_groups, retinanet, save_detector
from laplacianformer.weights import load_weights, save_weights

from . import helpers

DETECTORS = ("mask_rcnn", "retinanet")


@pytest.mark.parametrize("detector", DETECTORS)
def test_losses_reach_every_parameter_also_with_an_image_without_objects(detector: str) -> None:
    model = helpers.small(detector)
    images, targets = helpers.batch()
    losses = model(images, targets)
    assert len(losses) == (5 if detector == "mask_rcnn" else 2)
    sum(losses.values()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.zero_grad()
    nothing = model(images[1:], targets[1:])
    assert all(loss.isfinite() for loss in nothing.values())
    sum(nothing.values()).backward()
    unused = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert unused == [], "all processes need the same gradients, also one without objects"


@pytest.mark.parametrize("detector", DETECTORS)
def test_detections_are_in_pixels_of_the_image_that_was_given(detector: str) -> None:
    """Weights are random: without a threshold on the score something is found."""
    threshold = {"box_score_thresh": 0.0} if detector == "mask_rcnn" else {"score_thresh": 0.0}
    model = helpers.small(detector, **threshold).eval()
    with torch.no_grad():
        found = model([torch.rand(3, 200, 310)])[0]
    assert len(found["boxes"]) > 0
    assert found["boxes"].amin() >= 0
    assert found["boxes"].amax() > 64, "not of the resized image"
    assert (found["boxes"].amax(0) <= torch.tensor([310.0, 200, 310, 200])).all()
    assert set(found["labels"].tolist()) <= {0, 1, 2, 3}
    if detector == "mask_rcnn":
        assert found["masks"].shape[1:] == (1, 200, 310)


@pytest.mark.parametrize(
    ("backbone", "arguments", "strides"),
    [
        ("laplacianformer_nano", {}, [4, 8, 16]),
        ("laplacianformer_tiny", {}, [4, 8, 16, 32]),
        ("resnet18", {}, [4, 8, 16, 32]),
        ("pvt_v2_b0", {}, [4, 8, 16, 32]),
        ("swin_tiny_patch4_window7_224", {"strict_img_size": False, "depths": [1, 1, 1, 1]}, [4, 8, 16, 32]),
    ],
)
def test_levels_and_anchors_follow_the_strides_of_any_backbone(
    backbone: str, arguments: dict[str, Any], strides: list[int]
) -> None:
    images = torch.rand(1, 3, 72, 100)
    model = mask_rcnn(backbone, 3, backbone_args=arguments, channels=32, head_width=8, mask_layers=[8]).eval()
    with torch.no_grad():
        maps = model.backbone(images)
    assert model.backbone.maps.strides == strides
    levels = [*strides, 2 * strides[-1]]
    assert [tuple(level.shape[1:]) for level in maps.values()] == [(32, -(-72 // s), -(-100 // s)) for s in levels]
    assert [sizes[0] for sizes in model.rpn.anchor_generator.sizes] == [8 * stride for stride in levels]

    other = retinanet(backbone, 3, backbone_args=arguments, channels=32).eval()
    taken = [stride for stride in strides if stride >= 8]
    assert other.backbone.maps.strides == taken
    levels = [*taken, 2 * taken[-1], 4 * taken[-1]]
    with torch.no_grad():
        assert [level.shape[2] for level in other.backbone(images).values()] == [-(-72 // stride) for stride in levels]
    assert [sizes[0] for sizes in other.anchor_generator.sizes] == [4 * stride for stride in levels]


def test_strides_of_4_to_32_give_the_standard_anchors_of_coco() -> None:
    model = mask_rcnn("laplacianformer_tiny", 3, channels=32, head_width=8, mask_layers=[8])
    assert [sizes[0] for sizes in model.rpn.anchor_generator.sizes] == [32, 64, 128, 256, 512]
    other = retinanet("laplacianformer_tiny", 3, channels=32)
    assert [sizes[0] for sizes in other.anchor_generator.sizes] == [32, 64, 128, 256, 512]


@pytest.mark.parametrize("samples", [1, 2])
def test_a_cell_of_a_crop_averages_as_many_points_as_asked_for(samples: int) -> None:
    """A map that is the square of the position tells one point in the middle of a cell from two on each side of it."""
    model = helpers.small("mask_rcnn", crop_samples=samples)
    maps = {str(level): (torch.arange(16.0) ** 2).expand(1, 1, 16, 16) for level in range(3)}
    box = torch.tensor([[8.5 * 4, 8.5 * 4, 10.5 * 4, 10.5 * 4]])
    for pool, cells in ((model.roi_heads.box_roi_pool, 7), (model.roi_heads.mask_roi_pool, 14)):
        found = pool(maps, [box], [(64, 64)])[0, 0, 0]
        points = 8.5 + 2 / cells * (torch.arange(cells * samples) + 0.5) / samples
        low = points.floor()
        expected = low**2 + (points - low) * (2 * low + 1)
        torch.testing.assert_close(found, expected.view(cells, samples).mean(1))


def whitenings(model: nn.Module) -> list[Whitening]:
    return [module for module in model.modules() if isinstance(module, Whitening)]


def train_once(model: Any) -> None:
    model.train()
    images, targets = helpers.batch()
    sum(model(images, targets).values()).backward()


def test_whitening_statistics_are_updated_unless_frozen() -> None:
    free, frozen = helpers.small("retinanet"), helpers.small("retinanet", frozen_statistics=True)
    for model in (free, frozen):
        train_once(model)
    assert all(layer.num_batches_tracked == 1 for layer in whitenings(free))
    assert all(layer.num_batches_tracked == 0 for layer in whitenings(frozen))
    assert all(parameter.grad is not None for parameter in frozen.parameters()), "only statistics are frozen"


def test_frozen_stages_get_no_gradients_and_no_statistics_and_the_others_do() -> None:
    model = helpers.small("mask_rcnn", frozen_stages=1)
    train_once(model)
    first, second = model.backbone.maps.model.stages
    assert all(parameter.grad is None for parameter in first.parameters())
    assert all(parameter.grad is not None for parameter in second.parameters())
    assert [layer.num_batches_tracked.item() for layer in whitenings(model)] == [0, 1]
    with pytest.raises(ValueError, match="frozen_stages=3: laplacianformer_nano has 2 stages"):
        helpers.small("mask_rcnn", frozen_stages=3)


@pytest.mark.parametrize("backbone", ["resnet18", "pvt_v2_b0"])
def test_frozen_stages_of_other_backbones_are_frozen_too(backbone: str) -> None:
    model = retinanet(backbone, 3, channels=32, frozen_stages=2)
    frozen = [parameter.requires_grad for parameter in model.backbone.maps.parameters()]
    assert not frozen[0]
    assert frozen[-1]
    assert frozen == sorted(frozen), "from the first on"


def test_layer_decay_slows_early_layers_and_every_parameter_is_in_one_group() -> None:
    model = helpers.small("mask_rcnn")
    groups = parameter_groups(model, weight_decay=0.05, layer_decay=0.5)
    found = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(found) == sorted(id(parameter) for parameter in model.parameters())
    scales = {id(parameter): group.get("lr_scale", 1.0) for group in groups for parameter in group["params"]}
    stages = model.backbone.maps.model.stages
    first, last = stages[0].embedding.proj.weight, stages[1].blocks[0].mlp.fc2.weight
    assert scales[id(first)] < scales[id(last)] <= scales[id(model.roi_heads.box_head.fc6.weight)] == 1
    for group in groups:
        assert (group["weight_decay"] == 0) == all(parameter.ndim == 1 for parameter in group["params"])
    with pytest.raises(ValueError, match=r"layer_decay=0\.5: the features of resnet18 have no layers"):
        parameter_groups(retinanet("resnet18", 3, channels=32), layer_decay=0.5)


def test_a_saved_detector_finds_the_same_when_it_is_loaded(tmp_path: Path) -> None:
    model = helpers.small("mask_rcnn", box_score_thresh=0.0, frozen_stages=1).eval()
    save_detector(tmp_path / "a.safetensors", model, classes=["a", "b", "c"], category_ids=[1, 5, 9])
    loaded = load_detector(tmp_path / "a.safetensors")
    assert (loaded.classes, loaded.category_ids) == (("a", "b", "c"), (1, 5, 9))
    images, _ = helpers.batch()
    with torch.no_grad():
        for expected, found in zip(model(images), loaded.model(images), strict=True):
            assert all(torch.equal(expected[name], found[name]) for name in expected)


def classifier(path: Path, **arguments: Any) -> nn.Module:
    torch.manual_seed(1)
    given = {name: value for name, value in helpers.BACKBONE.items() if name != "out_indices"}
    model = timm.create_model("laplacianformer_nano", num_classes=2, **{**given, **arguments})
    save_weights(path, model, classes=["x", "y"], metadata={})
    return model


def test_a_classifier_gives_the_backbone_its_weights(tmp_path: Path) -> None:
    trained = classifier(tmp_path / "classifier.safetensors")
    model = helpers.small("retinanet", weights=tmp_path / "classifier.safetensors")
    for name, tensor in model.backbone.maps.model.state_dict().items():
        assert torch.equal(tensor, trained.state_dict()[name])


def test_a_detector_of_other_classes_gives_all_but_its_last_layers(tmp_path: Path) -> None:
    trained = helpers.small("mask_rcnn", 5)
    save_detector(tmp_path / "d.safetensors", trained, classes=list("abcde"))
    model = helpers.small("mask_rcnn", 3, weights=tmp_path / "d.safetensors")
    same = helpers.small("mask_rcnn", 5, weights=tmp_path / "d.safetensors")
    given = trained.state_dict()
    assert all(torch.equal(tensor, given[name]) for name, tensor in same.state_dict().items())
    kept = [name for name, tensor in model.state_dict().items() if tensor.shape == given[name].shape]
    assert len(kept) > 50
    assert all(torch.equal(model.state_dict()[name], given[name]) for name in kept if "predictor" not in name)
    assert model.roi_heads.box_predictor.cls_score.out_features == 4


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "classifier.safetensors"
    classifier(path)
    with pytest.raises(InputError, match=r"classifier\.safetensors holds a laplacianformer_nano: expected resnet18"):
        retinanet("resnet18", 3, path, channels=32)
    with pytest.raises(InputError, match=r"does not hold the laplacianformer_nano that it names: .*is missing"):
        helpers.small("retinanet", weights=path, backbone_args={**helpers.BACKBONE, "depths": [1, 2]})
    with pytest.raises(InputError, match=r"holds a classifier: expected a detector; laplacianformer predict"):
        load_detector(path)
    save_detector(tmp_path / "d.safetensors", helpers.small("retinanet"), classes=list("abc"))
    with pytest.raises(InputError, match=r"holds a detector: expected a classifier; laplacianformer detect"):
        load_weights(tmp_path / "d.safetensors")
    with pytest.raises(InputError, match=r"names .* for a detector of 3 classes"):
        save_detector(tmp_path / "e.safetensors", helpers.small("retinanet"), classes=["a"])
    assert not (tmp_path / "e.safetensors").exists()


def test_an_option_that_torchvision_does_not_know_is_refused() -> None:
    """torchvision would ignore it silently."""
    with pytest.raises(TypeError, match=r"MaskRCNN has no option box_score_treshold; did you mean box_score_thresh\?"):
        helpers.small("mask_rcnn", box_score_treshold=0.1)


@pytest.mark.parametrize(
    ("kind", "option", "expected"),
    [
        ("retinanet", {"detections_per_img": 0.5}, "detections_per_img must be a whole number from 0 on, got 0.5"),
        ("retinanet", {"topk_candidates": True}, "topk_candidates must be a whole number from 0 on, got True"),
        ("retinanet", {"detections_per_img": -1}, "detections_per_img must be a whole number from 0 on, got -1"),
        ("retinanet", {"score_thresh": "x"}, "score_thresh must be a finite number, got 'x'"),
        ("mask_rcnn", {"box_nms_thresh": float("nan")}, "box_nms_thresh must be a finite number, got nan"),
        ("mask_rcnn", {"bbox_reg_weights": [1, 1, 1]}, "bbox_reg_weights must be four numbers above 0"),
        ("mask_rcnn", {"rpn_head": "x"}, "rpn_head must be an object, not a value, got 'x'"),
    ],
    ids=str,
)
def test_an_option_that_would_fail_only_when_images_come_is_refused(kind: str, option: Any, expected: str) -> None:
    with pytest.raises(TypeError, match=expected):
        helpers.small(kind, **option)


def test_a_backbone_without_the_strides_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"laplacianformer_nano has feature maps of strides \[2\]: expected one from 8"
    ):
        retinanet("laplacianformer_nano", 3, backbone_args={**helpers.BACKBONE, "stem_stride": 2, "out_indices": (0,)})
