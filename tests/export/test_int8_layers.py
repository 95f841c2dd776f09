"""Layers in 8-bit integers: what they compute, which layers they are, and the images that they are calibrated with."""

import platform

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from laplacianformer._util.errors import InputError
from laplacianformer.export import _int8_layers as int8_layers
from laplacianformer.export._check import differences
from laplacianformer.export._int8_layers import Int8Layer, Range, calibration_images, to_int8
from laplacianformer.export._trace import trace
from laplacianformer.weights import load_weights
from tests.export.helpers import save_one_stage
from tests.helpers import CLASSES, picture
from tests.model.helpers import images

pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="8 bits are for x86 CPUs")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return load_weights(save_one_stage(tmp_path_factory.mktemp("weights") / "model.safetensors"))


@pytest.mark.parametrize("kind", ["linear", "without bias", "convolution"])
def test_a_layer_is_exact_on_integers(kind):
    """The same sums of products in float64, of inputs and weights that were rounded."""
    torch.manual_seed(0)
    layer = nn.Conv2d(6, 10, 3, 2, 1) if kind == "convolution" else nn.Linear(12, 10, bias=kind == "linear")
    x = torch.randn(2, 6, 9, 8) if kind == "convolution" else torch.randn(2, 7, 12)
    inputs = Range(-1.5, 2.0)  # narrower than the numbers: the rest is cut off
    int8 = Int8Layer(layer, inputs)
    integers = (x.double() / inputs.scale).round().add(inputs.zero).clamp(0, 255)
    weight = int8.weight.double() * int8.scale.double().view(-1, *[1] * (layer.weight.ndim - 1))
    assert (weight - layer.weight).abs().max() <= int8.scale.max() / 2 * 1.001
    rounded = (integers - inputs.zero) * inputs.scale
    if kind == "convolution":
        expected = F.conv2d(rounded, weight, layer.bias.detach().double(), 2, 1)
    else:
        expected = F.linear(rounded, weight, int8.bias.double())
    torch.testing.assert_close(int8(x).double(), expected, rtol=1e-5, atol=1e-5)


def test_a_layer_with_a_gelu_returns_integers():
    torch.manual_seed(0)
    layer, x = nn.Linear(12, 10), torch.randn(5, 12)
    inputs, outputs = Range(-4.0, 4.0), Range(-0.2, 2.5)
    found = Int8Layer(layer, inputs, outputs)(x)
    assert found.dtype == torch.uint8
    expected = F.gelu(Int8Layer(layer, inputs)(x)) / outputs.scale + outputs.zero
    assert (found - expected.clamp(0, 255)).abs().max() <= 0.51


def test_all_layers_but_the_head_and_the_local_branch_are_integers(loaded):
    model = loaded.model
    int8 = to_int8(model, [images(32, 32, batch=4)])
    names = {name for name, module in int8.named_modules() if isinstance(module, Int8Layer)}
    kept = {name.rsplit(".", 1)[-1] for name, each in int8.named_modules() if isinstance(each, nn.Linear | nn.Conv2d)}
    assert kept == {"head", "dwc"}
    layers = [each for each in model.modules() if isinstance(each, nn.Linear) or getattr(each, "groups", 0) == 1]
    assert len(names) == len(layers) - 1
    fused = [each for each in int8.modules() if isinstance(each, Int8Layer) and each.outputs is not None]
    assert len(fused) == sum(name.endswith("fc1") for name, _ in model.named_modules())
    measured = [difference.relative for difference in differences(loaded, int8)]
    assert 1e-4 < max(measured) < 0.1
    assert not any(isinstance(module, Int8Layer) for module in model.modules())


@pytest.mark.slow
def test_integers_can_be_traced_more_than_once(loaded):
    x = images(32, 32, batch=3)
    for _ in range(2):
        int8 = to_int8(loaded.model, [images(32, 32, batch=4)])
        with torch.inference_mode():
            torch.testing.assert_close(trace(int8, (32, 32)).module()(x), int8(x), rtol=0, atol=0.01)


def test_without_images_nothing_is_calibrated(loaded):
    with pytest.raises(InputError, match="need calibration images"):
        to_int8(loaded.model, [])


def test_other_processors_are_refused(loaded, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(InputError, match="for x86 CPUs, this one is aarch64: use float32 or bfloat16"):
        to_int8(loaded.model, [images(32, 32)])


def test_calibration_images_are_from_all_classes_of_the_training_split(loaded, tmp_path, monkeypatch):
    for split, shade in (("train", 250), ("val", 5)):
        for index, name in enumerate(CLASSES):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(4):
                Image.new("RGB", (32, 32), (shade, 10 * index, 0)).save(tmp_path / split / name / f"{number}.png")
    monkeypatch.setattr(int8_layers, "CALIBRATION_IMAGES", 2 * len(CLASSES))

    def seen():
        found = torch.cat(list(calibration_images(loaded, str(tmp_path))))
        assert len(found) == 2 * len(CLASSES)
        assert len(found[:, 1, 0, 0].unique()) == len(CLASSES)
        return float(found[:, 0].mean())

    assert seen() > 0
    for name in CLASSES:
        for number in range(4):
            (tmp_path / "train" / name / f"{number}.png").unlink()
        (tmp_path / "train" / name).rmdir()
    (tmp_path / "train").rmdir()
    assert seen() < 0


def test_images_that_cannot_be_read_are_left_out(loaded, tmp_path):
    for name in CLASSES:
        (tmp_path / name).mkdir()
        picture(1).save(tmp_path / name / "0.png")
    (tmp_path / CLASSES[0] / "1.png").write_bytes(b"broken")
    assert sum(len(batch) for batch in calibration_images(loaded, str(tmp_path))) == len(CLASSES)
