"""Detectors as ONNX: one file from a picture of any size to its objects, and an example that needs only the file."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

onnx = pytest.importorskip("onnx", reason="install laplacianformer[export]")
pytest.importorskip("onnxscript", reason="install laplacianformer[export]")
onnxruntime = pytest.importorskip("onnxruntime", reason="install laplacianformer[export]")

from laplacianformer.cli import main  # noqa: E402
from laplacianformer.detection import load_detector, save_detector  # noqa: E402
from laplacianformer.detection._find import find_objects  # noqa: E402
from laplacianformer.export import _detector, detector_differences  # noqa: E402
from laplacianformer.export._detector_graph import GRAPHS  # noqa: E402
from tests.detection import helpers  # noqa: E402
from tests.export.helpers import code_of  # noqa: E402
from tests.helpers import picture  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "detect_onnx.py"
# Thresholds at which a detector that was never trained finds some objects, and leaves some out.
FINDS = {"retinanet": {"score_thresh": 0.0105}, "mask_rcnn": {"box_score_thresh": 0.24}}
# Tracing takes most of the time: masked Laplacian attention is traced once, levels to crop from are traced without.
ONE_STAGE = {key: value[:1] for key, value in helpers.BACKBONE.items() if isinstance(value, list)}
BACKBONES = {
    "retinanet": {**helpers.BACKBONE, **ONE_STAGE},
    "mask_rcnn": {**helpers.BACKBONE, "attention": "no-mixing", "attention_args": {}},
}
SIZES = ((64, 64), (37, 53), (20, 130), (200, 150), (1, 40))


def pixels(height: int, width: int) -> Tensor:
    return torch.randint(256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(width))


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_the_graph_finds_what_the_detector_finds_bit_for_bit(kind: str, height: int, width: int) -> None:
    model, image = helpers.small(kind, **FINDS[kind]).eval(), pixels(height, width)
    prepared, _ = model.transform([image / 255])
    given = torch.tensor(prepared.image_sizes[0]), torch.arange(float(height)), torch.arange(float(width))
    with torch.inference_mode():
        expected = find_objects(model, image)
        found = GRAPHS[kind](model).eval()(prepared.tensors, *given)
    assert len(expected["boxes"]) > 2
    for name, values in zip(("boxes", "labels", "scores", "masks"), found, strict=False):
        if name in expected:
            assert torch.equal(values, expected[name]), name


@pytest.mark.parametrize("kind", GRAPHS)
def test_nothing_found_is_empty(kind: str) -> None:
    threshold = {"retinanet": {"score_thresh": 2.0}, "mask_rcnn": {"box_score_thresh": 2.0}}[kind]
    model = helpers.small(kind, **threshold).eval()
    given = torch.randn(1, 3, 64, 64), torch.tensor((60, 64)), torch.arange(30.0), torch.arange(32.0)
    found = GRAPHS[kind](model).eval()(*given)
    assert found[0].shape == (0, 4)
    assert len(found[1]) == len(found[2]) == 0
    assert kind == "retinanet" or found[3].shape == (0, 30, 32)


@pytest.fixture(scope="module", params=GRAPHS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Weights and the ONNX file that the command made of them."""
    folder = tmp_path_factory.mktemp("onnx")
    weights, output = folder / "model.safetensors", folder / "model.onnx"
    kind = request.param
    model = helpers.small(kind, backbone_args=BACKBONES[kind], **FINDS[kind])
    save_detector(weights, model, classes=["disc", "square", "cross"])
    main(["export", "--weights", str(weights), "--format", "onnx", str(output)])
    return weights, output


@pytest.mark.slow
def test_one_file_finds_what_the_detector_finds_at_every_size(exported: tuple[Path, Path]) -> None:
    weights, output = exported
    model = load_detector(weights).model
    session = onnxruntime.InferenceSession(output, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    assert names == ["boxes", "labels", "scores", "masks"][: len(names)]
    assert [each.shape for each in session.get_inputs()] == [[3, "height", "width"]]
    for height, width in SIZES:
        image = pixels(height, width)
        found = dict(zip(names, session.run(names, {"image": (image / 255).numpy()}), strict=True))
        expected = find_objects(model, image)
        assert set(found) == set(expected)
        assert len(expected["boxes"])
        torch.testing.assert_close(torch.from_numpy(found["boxes"]), expected["boxes"], rtol=1e-4, atol=1e-2)
        torch.testing.assert_close(torch.from_numpy(found["scores"]), expected["scores"], rtol=1e-4, atol=1e-5)
        assert torch.equal(torch.from_numpy(found["labels"]), expected["labels"])
        if "masks" in expected:
            assert (found["masks"] != expected["masks"].numpy()).mean() < 1e-3
    assert b"/src/" not in output.read_bytes()  # nor where it was made


@pytest.mark.slow
def test_the_example_detects_as_the_package_does_without_it(exported: tuple[Path, Path], tmp_path: Path) -> None:
    weights, output = exported
    picture(3, (90, 61)).save(tmp_path / "photo.png")
    given = [str(output), str(tmp_path / "photo.png"), str(tmp_path / "found.png")]
    alone = f"import runpy, sys; sys.argv[1:] = {given!r}\n"
    alone += f"text = open({str(EXAMPLE)!r}).read().replace('LEAST_SCORE = 0.5', 'LEAST_SCORE = 0.0')\n"
    alone += "exec(compile(text, 'example', 'exec'), {'__name__': '__main__'})\n"
    alone += "assert not {'torch', 'laplacianformer'} & sys.modules.keys()"
    ended = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True, check=True)
    with Image.open(tmp_path / "photo.png") as photo:
        image = torch.from_numpy(np.array(photo.convert("RGB"))).permute(2, 0, 1)
    loaded = load_detector(weights)
    expected = find_objects(loaded.model, image)
    said = [line.split() for line in ended.stdout.splitlines()]
    assert [words[1] for words in said] == [loaded.classes[label - 1] for label in expected["labels"]]
    np.testing.assert_allclose([[float(each) for each in words[2:]] for words in said], expected["boxes"], atol=0.11)
    with Image.open(tmp_path / "found.png") as drawn:
        assert drawn.size == (90, 61)
        assert np.asarray(drawn).std() > 0


def test_a_difference_is_measured_and_a_lost_object_is_counted(tmp_path: Path) -> None:
    model = helpers.small("retinanet", **FINDS["retinanet"])
    save_detector(tmp_path / "model.safetensors", model, classes=["a", "b", "c"])
    loaded = load_detector(tmp_path / "model.safetensors")

    def run(image: Tensor, scale: float = 1.0, lost: int = 0) -> dict[str, Tensor]:
        objects, outputs = _detector._with_outputs(loaded.model, (image * 255).round().byte())
        return {
            **{name: values[lost:] for name, values in objects.items()},
            **{k: v * scale for k, v in outputs.items()},
        }

    assert all(each.relative == 0 and each.same == each.objects > 2 for each in detector_differences(loaded, run))
    far = list(detector_differences(loaded, lambda image: run(image, 1.01, 1)))
    assert all(each.relative == pytest.approx(0.01, rel=1e-3) for each in far)
    assert all(each.same == each.objects - 1 for each in far)


def test_a_detector_that_is_not_finite_is_an_error_that_names_the_layer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, model = tmp_path / "model.safetensors", helpers.small("retinanet")
    with torch.no_grad():
        next(model.head.parameters()).fill_(torch.nan)
    save_detector(weights, model, classes=["a", "b", "c"])
    assert code_of(["export", "--weights", str(weights), "--format", "onnx", str(tmp_path / "x.onnx")]) == 2
    assert "the weights head." in capsys.readouterr().err
    assert not (tmp_path / "x.onnx").exists()


def test_what_a_detector_can_not_be_exported_to_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = tmp_path / "model.safetensors"
    save_detector(weights, helpers.small("retinanet"), classes=["a", "b", "c"])
    for form, output in (("pt2", "x.pt2"), ("hf", "x")):
        assert code_of(["export", "--weights", str(weights), "--format", form, str(tmp_path / output)]) == 2
        assert "a detector is exported with --format onnx" in capsys.readouterr().err
    other = helpers.BUILDERS["retinanet"]("resnet10t", 3, channels=16)
    save_detector(weights, other, classes=["a", "b", "c"])
    assert code_of(["export", "--weights", str(weights), "--format", "onnx", str(tmp_path / "x.onnx")]) == 2
    assert "a detector on resnet10t can't be exported" in capsys.readouterr().err
    assert json.loads(load_detector(weights).metadata["classes"]) == ["a", "b", "c"]
