"""Detectors as ONNX: one file from a picture of any size to its objects, and an example that needs only the file."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

onnx_ir = pytest.importorskip("onnx_ir", reason="install laplacianformer[export]")
pytest.importorskip("onnxscript", reason="install laplacianformer[export]")
onnxruntime = pytest.importorskip("onnxruntime", reason="install laplacianformer[export]")

from onnx_ir.passes.common import RemoveUnusedNodesPass  # noqa: E402

from laplacianformer import export  # noqa: E402
from laplacianformer.cli import main  # noqa: E402
from laplacianformer.detection import load_detector, save_detector  # noqa: E402
from laplacianformer.detection._find import find_objects  # noqa: E402
from laplacianformer.export import _detector, detector_differences  # noqa: E402
from laplacianformer.export._detector import DetectorDifference, ExportedDetector  # noqa: E402
from laplacianformer.export._detector_graph import GRAPHS  # noqa: E402
from tests.detection import helpers  # noqa: E402
from tests.export.helpers import code_of  # noqa: E402
from tests.helpers import picture  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "detect_onnx.py"
# Thresholds at which a detector that was never trained finds some objects, and leaves some out.
FINDS = {"retinanet": {"score_thresh": 0.0105}, "mask_rcnn": {"box_score_thresh": 0.24}}
NOTHING = {"retinanet": {"score_thresh": 2.0}, "mask_rcnn": {"box_score_thresh": 2.0}}
# A black picture then has no object, and all proposals of a small picture are looked at.
EXPORTED = {**FINDS, "mask_rcnn": {"box_score_thresh": 0.2998, "rpn_post_nms_top_n_test": 60}}
# Tracing takes most of the time: masked Laplacian attention is traced once, levels to crop from are traced without.
ONE_STAGE = {key: value[:1] for key, value in helpers.BACKBONE.items() if isinstance(value, list)}
BACKBONES = {
    "retinanet": {**helpers.BACKBONE, **ONE_STAGE, "attention_args": {"grid": 3, "iterations": 2}},
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
    model = helpers.small(kind, **NOTHING[kind]).eval()
    given = torch.randn(1, 3, 64, 64), torch.tensor((60, 64)), torch.arange(30.0), torch.arange(32.0)
    found = GRAPHS[kind](model).eval()(*given)
    assert found[0].shape == (0, 4)
    assert len(found[1]) == len(found[2]) == 0
    assert kind == "retinanet" or found[3].shape == (0, 30, 32)


def test_proposals_whose_score_is_the_threshold_count() -> None:
    """As in torchvision: a sigmoid of -200 is 0 in float32, and 0 is the threshold."""
    model, image = helpers.small("mask_rcnn", box_score_thresh=0.0).eval(), pixels(64, 64)
    with torch.no_grad():
        model.rpn.head.cls_logits.bias.fill_(-200.0)
    given = torch.tensor((64, 64)), torch.arange(64.0), torch.arange(64.0)
    with torch.inference_mode():
        expected = find_objects(model, image)["boxes"]
        found = GRAPHS["mask_rcnn"](model).eval()(model.transform([image / 255])[0].tensors, *given)[0]
    assert len(expected)
    assert torch.equal(found, expected)


@pytest.fixture(scope="module", params=GRAPHS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Weights and the ONNX file that the command made of them."""
    folder = tmp_path_factory.mktemp("onnx")
    weights, output = folder / "model.safetensors", folder / "model.onnx"
    kind = request.param
    model = helpers.small(kind, backbone_args=BACKBONES[kind], **EXPORTED[kind])
    if kind == "mask_rcnn":
        # Scores of proposals are told apart, but for two of three shapes of anchors: theirs are 0 in float32, which is
        # the threshold, and counts.
        model.rpn.head.cls_logits.weight.data.mul_(100)
        model.rpn.head.cls_logits.bias.data[1:] = -200.0
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
    sizes = [["objects", 4], ["objects"], ["objects"], ["objects", "height", "width"]]
    assert [each.shape for each in session.get_outputs()] == sizes[: len(names)]
    assert not RemoveUnusedNodesPass()(onnx_ir.load(output)).modified, "nothing is left of what the check looked at"
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
@pytest.mark.parametrize("exported", ["mask_rcnn"], indirect=True)
def test_a_picture_without_objects_is_one(exported: tuple[Path, Path]) -> None:
    """A black one; noise has objects of higher scores."""
    weights, output = exported
    model = load_detector(weights).model
    session = onnxruntime.InferenceSession(output, providers=["CPUExecutionProvider"])
    for height, width in SIZES:
        black = torch.zeros(3, height, width, dtype=torch.uint8)
        assert len(find_objects(model, black)["boxes"]) == 0
        boxes, labels, scores, masks = session.run(None, {"image": black.float().numpy()})
        assert boxes.shape == (0, 4)
        assert masks.shape == (0, height, width)
        assert len(labels) == len(scores) == 0


@pytest.mark.slow
def test_the_example_detects_as_the_package_does_without_it(exported: tuple[Path, Path], tmp_path: Path) -> None:
    weights, output = exported
    picture(3, (90, 61)).save(tmp_path / "photo.png")
    given = [str(output), str(tmp_path / "photo.png"), str(tmp_path / "found.png")]
    alone = f"import runpy, sys; main = runpy.run_path({str(EXAMPLE)!r})['main']; main(*{given!r}, least_score=0.0); "
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


class Twin:
    """Stands for an export: it computes what the detector computes, but for what is changed."""

    def __init__(self, folder: Path, kind: str, **thresholds: float) -> None:
        save_detector(folder / "model.safetensors", helpers.small(kind, **thresholds), classes=["a", "b", "c"])
        self.loaded, self.change = load_detector(folder / "model.safetensors"), lambda values: values

    def __call__(self, image: Tensor) -> dict[str, Tensor]:
        whole = torch.tensor([[0.0, 0, 40, 40]])
        given = {"proposals": torch.tensor([[2.0, 3, 30, 20], [5, 5, 25, 40]]), "mask_boxes": whole}
        objects, heads = _detector._with_heads(self.loaded.model, (image * 255).round().byte(), given)
        return self.change({**given, **objects, **heads})

    def measured(self, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> list[DetectorDifference]:
        self.change = change
        return list(detector_differences(self.loaded, self))


@pytest.fixture(params=GRAPHS)
def twin(request: pytest.FixtureRequest, tmp_path: Path) -> Twin:
    return Twin(tmp_path, request.param, **FINDS[request.param])


OF_OBJECTS = ("boxes", "labels", "scores", "masks")
INPUTS = ("proposals", "mask_boxes")  # of a second stage: given to the detector, not compared
HEADS = {kind: [name for name in graph.heads if name not in INPUTS] for kind, graph in GRAPHS.items()}


def test_no_difference_is_found_where_there_is_none(twin: Twin) -> None:
    assert all(each.relative == 0 and each.same == each.objects > 2 for each in twin.measured(dict))


def test_a_lost_object_is_counted(twin: Twin) -> None:
    found = twin.measured(lambda values: {k: v[1:] if k in OF_OBJECTS else v for k, v in values.items()})
    assert all(each.same == each.objects - 1 for each in found)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in GRAPHS for name in HEADS[kind]])
def test_a_difference_of_each_head_is_measured(kind: str, name: str, tmp_path: Path) -> None:
    found = Twin(tmp_path, kind, **FINDS[kind]).measured(lambda values: {**values, name: values[name] * 1.01})
    assert all(each.relative == pytest.approx(0.01, rel=1e-3) for each in found)


def test_an_object_with_another_mask_is_not_the_same(tmp_path: Path) -> None:
    twin = Twin(tmp_path, "mask_rcnn", **FINDS["mask_rcnn"])
    for each in twin.measured(lambda values: {**values, "masks": values["masks"].roll(3, -1)}):
        assert each.same < each.objects
        assert each.relative == 0


@pytest.mark.parametrize("kind", GRAPHS)
def test_differences_of_heads_are_measured_where_nothing_is_found(kind: str, tmp_path: Path) -> None:
    twin = Twin(tmp_path, kind, **NOTHING[kind])
    found = twin.measured(lambda values: {**values, HEADS[kind][-1]: values[HEADS[kind][-1]] * 1.01})
    assert all(each.objects == each.same == 0 for each in found)
    assert all(each.relative == pytest.approx(0.01, rel=1e-3) for each in found)


def test_an_export_that_finds_other_objects_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    twin = Twin(tmp_path, "retinanet", **FINDS["retinanet"])
    twin.change = lambda values: {**values, "labels": values["labels"] % 3 + 1}
    monkeypatch.setattr(export, "export_detector", lambda loaded: ExportedDetector(b"file", twin))
    given = ["export", "--weights", str(tmp_path / "model.safetensors"), "--format", "onnx", str(tmp_path / "x.onnx")]
    assert code_of(given) == 2
    said = capsys.readouterr()
    assert "of which the export finds" in said.out
    assert "it does not find the objects that the model finds" in " ".join(said.err.split())
    assert not (tmp_path / "x.onnx").exists()
    twin.change = dict
    assert code_of(given) == 0
    assert (tmp_path / "x.onnx").read_bytes() == b"file"


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
