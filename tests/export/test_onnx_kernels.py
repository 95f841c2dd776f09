"""`laplacianformer export --format onnx --kernels`: one node per layer, the same numbers, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

onnx = pytest.importorskip("onnx", reason="install laplacianformer[export]")
pytest.importorskip("onnxscript", reason="install laplacianformer[export]")
onnxruntime = pytest.importorskip("onnxruntime", reason="install laplacianformer[export]")

from laplacianformer import ops  # noqa: E402
from laplacianformer.export import _onnx_library, export_model, onnx_library, tolerance  # noqa: E402
from laplacianformer.export._check import differences  # noqa: E402
from laplacianformer.export._onnx_kernels import attention_as_nodes  # noqa: E402
from laplacianformer.export._onnx_model import onnx_runner, onnx_session  # noqa: E402
from laplacianformer.weights import load_weights, save_weights  # noqa: E402
from tests.convert.helpers import save_teacher, teacher  # noqa: E402
from tests.convert.test_conversion import converted  # noqa: E402
from tests.export.helpers import code_of, save_one_stage  # noqa: E402
from tests.helpers import CLASSES, small_model  # noqa: E402
from tests.model.helpers import create, images  # noqa: E402

built = pytest.mark.skipif(ops.backends()["cpu"] is not None, reason=str(ops.backends()["cpu"]))


def nodes(file: bytes) -> list[str]:
    """The operators that are not ONNX's own."""
    return [node.op_type for node in onnx.load_from_string(file).graph.node if node.domain]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Weights of two stages, and the file that the command made of them."""
    folder = tmp_path_factory.mktemp("kernels")
    weights, output = folder / "model.safetensors", folder / "model.onnx"
    save_weights(weights, small_model(), classes=CLASSES, metadata={})
    assert code_of(["export", "--weights", str(weights), "--format", "onnx", "--kernels", str(output)]) == 0
    return weights, output


@built
@pytest.mark.slow
def test_attention_is_one_node_and_one_file_takes_every_size(exported: tuple[Path, Path]) -> None:
    file = exported[1].read_bytes()
    assert nodes(file) == ["LaplacianAttention"] * 2
    model, run = load_weights(exported[0]).model, onnx_runner(file, onnx_library())
    for height, width in ((32, 32), (14, 14), (13, 40), (9, 9), (33, 47), (9, 150), (32, 32)):
        x = images(height, width, batch=1 + height % 3)
        with torch.inference_mode():
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)


@built
@pytest.mark.slow
def test_without_the_library_the_file_is_refused_and_names_the_operator(exported: tuple[Path, Path]) -> None:
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail, match="LaplacianAttention"):
        onnx_session(exported[1].read_bytes())


@built
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"qk_norm": True, "gain": "learned"},
        {"whitening": None, "gain": 0.5, "rope": False, "qkv_bias": False},
        {"grid": (3, 5), "scale": 2.0},
    ],
    ids=str,
)
def test_every_option_of_the_attention_is_exported(options: dict[str, Any], tmp_path: Path) -> None:
    loaded = load_weights(save_one_stage(tmp_path / "model.safetensors", **options))
    written = export_model(loaded, "onnx", kernels=True)
    assert nodes(written.file) == ["LaplacianAttention"]
    measured = [difference.relative for difference in differences(loaded, written.run)]
    assert max(measured) < 1e-5


@built
@pytest.mark.slow
def test_linear_layers_in_int8_go_with_it(tmp_path: Path) -> None:
    loaded = load_weights(save_one_stage(tmp_path / "model.safetensors"))
    written = export_model(loaded, "onnx", precision="int8", kernels=True)
    assert "LaplacianAttention" in nodes(written.file)
    measured = [difference.relative for difference in differences(loaded, written.run)]
    assert 1e-5 < max(measured) < tolerance("int8")


@built
@pytest.mark.slow
@pytest.mark.parametrize("layers", [None, 1])
def test_a_converted_vision_transformer_with_a_class_token(tmp_path: Path, layers: int | None) -> None:
    """All of its layers, or the first alone: the other stays softmax, in ONNX's operators."""
    save_teacher(tmp_path / "vit.safetensors", converted(teacher("vit"), layers=layers))
    loaded = load_weights(tmp_path / "vit.safetensors")
    written = export_model(loaded, "onnx", kernels=True)
    assert nodes(written.file) == ["LaplacianAttention"] * (layers or 2)
    assert max(difference.relative for difference in differences(loaded, written.run)) < 1e-5


@pytest.mark.slow
def test_by_default_there_are_operators_of_onnx_alone(tmp_path: Path) -> None:
    loaded = load_weights(save_one_stage(tmp_path / "model.safetensors"))
    assert nodes(export_model(loaded, "onnx").file) == []


def test_after_an_export_the_model_is_as_before() -> None:
    model = create(depths=(1,), embed_dims=(32,), num_heads=(1,), mlp_ratios=(2,))
    (layer,) = [module for name, module in model.named_modules() if name.endswith("attention")]
    with attention_as_nodes(model):
        assert "forward" in vars(layer)
    assert "forward" not in vars(layer)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"attention": "softmax"}, "--kernels is for models with Laplacian attention, this one has SoftmaxAttention"),
        ({"attention_args": {"kernel": "gaussian"}}, "attention of the named models, this model has AblationAttention"),
        ({"attention_args": {"solver": "cholesky"}}, "gram=keys, cholesky x 6): export it without"),
        ({"attention_args": {"grid": 12}}, "--kernels takes at most 128 landmarks, this model has 144"),
    ],
)
def test_what_the_operator_can_not_compute_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: Any, reason: str
) -> None:
    monkeypatch.setattr(_onnx_library, "onnx_library", lambda: tmp_path / "there.so")
    weights, output = tmp_path / "model.safetensors", tmp_path / "model.onnx"
    save_weights(weights, small_model(**options), classes=CLASSES, metadata={})
    assert code_of(["export", "--weights", str(weights), "--format", "onnx", "--kernels", str(output)]) == 2
    assert reason in capsys.readouterr().err
    assert not output.exists()


def test_a_package_without_the_library_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_onnx_library.cpu_extension, "FOLDER", tmp_path)
    (tmp_path / "build_failure.txt").write_text("no C++ compiler, 'c++' is not found\n")
    weights, output = tmp_path / "model.safetensors", tmp_path / "model.onnx"
    save_weights(weights, small_model(), classes=CLASSES, metadata={})
    assert code_of(["export", "--weights", str(weights), "--format", "onnx", "--kernels", str(output)]) == 2
    expected = "there is no library for onnxruntime: the C++ extension is not built: no C++ compiler"
    assert expected in capsys.readouterr().err
