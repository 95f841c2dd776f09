"""The tools of the timm world take the backbone: one training step each. No weights are fetched."""

import pytest
import timm.data
import timm.loss
import torch
from torch.nn import functional as F

from tests.model.helpers import create, images

NAME = "laplacianformer_tiny"
STEM = "stages.0.embedding.proj.weight"


def train_step(model, loss):
    """One step; the loss is finite, and the gradient reaches the stem and changes it."""
    stem = next(parameter for name, parameter in model.named_parameters() if name.endswith(STEM))
    before = stem.detach().clone()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    value = loss(model.train())
    value.backward()
    assert value.isfinite()
    assert stem.grad.isfinite().all()
    assert stem.grad.count_nonzero() > 0
    optimiser.step()
    assert not torch.equal(stem, before)


def test_timm_features_only():
    train_step(create(NAME, features_only=True), lambda model: sum(map_.square().mean() for map_ in model(images(64))))


def test_timm_classification_with_mixup():
    x = images(64, batch=4)
    x, target = timm.data.Mixup(num_classes=10)(x, torch.tensor([0, 1, 2, 3]))
    criterion = timm.loss.SoftTargetCrossEntropy()
    train_step(create(NAME, num_classes=10, drop_path_rate=0.1), lambda model: criterion(model(x), target))


@pytest.mark.parametrize(("decoder", "size"), [("Unet", NAME), ("UPerNet", NAME), ("Unet", "laplacianformer_nano")])
def test_segmentation_models_pytorch(decoder, size):
    smp = pytest.importorskip("segmentation_models_pytorch", reason="install laplacianformer[ecosystem]")
    depth = {"encoder_depth": 4, "decoder_channels": (64, 32, 16, 8)} if size.endswith("nano") else {}
    torch.manual_seed(0)
    model = getattr(smp, decoder)(f"tu-{size}", encoder_weights=None, classes=5, **depth)
    target = torch.randint(5, (2, 64, 96))

    def loss(model):
        masks = model(images(64, 96))
        assert masks.shape == (2, 5, 64, 96)
        return F.cross_entropy(masks, target)

    train_step(model, loss)


@pytest.mark.parametrize("out_indices", [(0, 1, 2, 3), (1, 3)])
def test_transformers_backbone(out_indices):
    transformers = pytest.importorskip("transformers", reason="install laplacianformer[ecosystem]")
    config = transformers.TimmBackboneConfig(
        backbone=NAME, use_pretrained_backbone=False, out_indices=list(out_indices), use_timm_backbone=True
    )
    torch.manual_seed(0)
    model = transformers.TimmBackbone(config)
    widths = (64, 128, 320, 512)
    assert model.channels == [widths[index] for index in out_indices]

    def loss(model):
        maps = model(images(64)).feature_maps
        assert [map_.shape[1] for map_ in maps] == model.channels
        assert [map_.shape[2] for map_ in maps] == [16 // 2**index for index in out_indices]
        return sum(map_.square().mean() for map_ in maps)

    train_step(model, loss)


def test_transformers_wrapper_saves_and_loads(tmp_path):
    transformers = pytest.importorskip("transformers", reason="install laplacianformer[ecosystem]")
    config = transformers.TimmWrapperConfig(architecture="laplacianformer_nano", num_labels=4)
    torch.manual_seed(0)
    model = transformers.TimmWrapperForImageClassification(config).eval()
    model.save_pretrained(tmp_path)
    copy = transformers.TimmWrapperForImageClassification.from_pretrained(tmp_path).eval()
    assert torch.equal(model(images(32)).logits, copy(images(32)).logits)
    assert model(images(32)).logits.shape == (2, 4)


def test_torchvision_detection_takes_the_maps():
    torchvision = pytest.importorskip("torchvision")

    class Backbone(torch.nn.Module):
        out_channels = 32

        def __init__(self):
            super().__init__()
            self.body = create("laplacianformer_nano", features_only=True, out_indices=(1, 2, 3))
            self.pyramid = torchvision.ops.FeaturePyramidNetwork(self.body.feature_info.channels(), 32)

        def forward(self, x):
            return self.pyramid({str(index): map_ for index, map_ in enumerate(self.body(x))})

    sizes = tuple((size,) for size in (16, 32, 64))
    anchors = torchvision.models.detection.anchor_utils.AnchorGenerator(sizes, ((1.0,),) * 3)
    detector = torchvision.models.detection.RetinaNet(
        Backbone(), num_classes=3, anchor_generator=anchors, min_size=64, max_size=96
    )
    targets = [{"boxes": torch.tensor([[4.0, 4.0, 40.0, 40.0]]), "labels": torch.tensor([1])}] * 2
    train_step(detector, lambda model: sum(model(list(images(64, 80).sigmoid()), targets).values()))
