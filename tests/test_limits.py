"""Inputs that are refused for their size or their form: one line each, quickly and in little memory."""

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import yaml

from laplacianformer._util import limits
from laplacianformer._util.devices import chosen_device
from laplacianformer._util.errors import InputError
from laplacianformer.classification import load_recipe
from laplacianformer.detection._weights import load_detector, save_detector
from laplacianformer.weights import _description, load_weights, save_weights
from tests.detection import helpers as detection
from tests.detection.helpers import open_folder
from tests.helpers import CLASSES, INPUT, SWIN, save_small, save_swin, small_model

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def rewrite(path: Path, **changes: str) -> None:
    """The same tensors with other metadata, written by hand: nothing checks them."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"].update(changes)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def refused(path: Path, message: str, load: Any = load_weights) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500


def changed(**values: Any) -> str:
    return json.dumps({**INPUT, **values})


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": DEEP}, "nested too deeply"),
        ({"input": DEEP}, "nested too deeply"),
        ({"model_args": f'{{"a": {DEEP}}}'}, "nested too deeply"),
        ({"model_args": '{"a": ' + "[" * 50 + "]" * 50 + "}"}, "nested too deeply: at most 20 levels"),
        ({"classes": f'["{"x" * limits.MOST_JSON}"]'}, "8000004 characters: at most 8000000"),
        ({"classes": '["\\ud800", "b", "c", "d", "e", "f", "g"]'}, "text that is not Unicode"),
        ({"input": changed(crop_pct=1e-9)}, "input that can't be used"),
        ({"input": changed(size=[3, 20_000, 20_000])}, "at most 8192 pixels"),
        ({"input": changed(std=[1e-300] * 3)}, "std from 1e-06"),
        ({"input": changed(std=[float("nan")] * 3)}, "input that can't be used"),
        ({"input": changed(mean=[float("inf")] * 3)}, "input that can't be used"),
        ({"input": changed(mean=[10**400] * 3)}, "input that can't be used"),
        ({"model_args": '{"num_classes": 7, "depths": [1000000, 1]}'}, r"depths.0 = 1000000: at most 1000"),
        ({"model_args": '{"num_classes": 7, "attention_args": {"iterations": 1000000000}}'}, "at most 1000"),
        ({"model_args": f'{{"num_classes": {"9" * 5000}}}'}, "is not JSON"),
        ({"model_args": f'{{"num_classes": 1{"0" * 400}}}'}, "at most 100000"),
        ({"model_args": '{"two\\nlines": 1e300}'}, r"has two lines = 1e\+300: at most 100000"),
        ({"model_args": '{"a": ' + str([0] * 2000) + "}"}, "more than 1000 values"),
        ({"model_args": '{"num_classes": 7, "img_size": 8193}'}, "img_size = 8193: at most 8192"),
        ({"model_args": '{"num_classes": 7, "num_heads": []}'}, "can't be built"),
        ({"model_args": '{"num_classes": 7, "depths": 3}'}, "can't be built"),
        ({"architecture": "x" * 100_000}, "which this version of the package doesn't know"),
    ],
    ids=range(22),
)
def test_weights_files(path: Path, changes: dict[str, str], message: str) -> None:
    save_small(path)
    rewrite(path, **changes)
    refused(path, message)


def test_buffers_that_are_not_in_the_file_are_counted(path: Path) -> None:
    """Masks of shifted windows, 0.8 GB for one layer, which a file of 20 kB asks for."""
    save_swin(path)
    assert load_weights(path).input["size"] == (3, 32, 32)
    rewrite(path, model_args=json.dumps({**SWIN, "num_classes": len(CLASSES), "img_size": 8192}))
    refused(path, "206128251 numbers in its buffers: at most 100000000")


def test_what_can_not_be_built_twice_is_refused_in_one_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the model on the meta device there may be no memory for the model itself."""
    save_small(path)
    create = timm.create_model

    def full(name: str, **arguments: Any) -> Any:
        if torch.get_default_device().type != "meta":
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return create(name, **arguments)

    monkeypatch.setattr(timm, "create_model", full)
    refused(path, "that can't be built with .* can't allocate memory")


def test_a_detector_is_checked_like_a_classifier(path: Path) -> None:
    model = detection.small("retinanet")
    save_detector(path, model, classes=["a", "b", "c"])
    arguments = model.arguments
    endless = {**arguments, "backbone_args": {**arguments["backbone_args"], "depths": [10**6, 1]}}
    rewrite(path, model_args=json.dumps(endless))
    refused(path, "depths.0 = 1000000: at most 1000", load_detector)
    rewrite(path, model_args=json.dumps({**arguments, "channels": 90_000}))
    refused(path, "does not hold the retinanet that it names", load_detector)


def test_metrics_that_no_float_holds_are_named(path: Path) -> None:
    save_small(path)
    rewrite(path, metrics='{"accuracy": 0.5, "loss": 1' + "0" * 400 + ', "top5": Infinity, "other": NaN}')
    loaded = load_weights(path)
    assert _description.metrics(loaded) == {"accuracy": 0.5}
    said = _description.describe(loaded).splitlines()
    assert "accuracy 50.0 %" in said
    assert "Not shown, as they are no finite numbers: loss, top5, other" in said


def test_what_can_not_be_read_back_is_not_written(path: Path) -> None:
    with pytest.raises(InputError, match="not Unicode"):
        save_weights(path, small_model(), classes=["\ud800", *CLASSES[1:]], metadata={"input": json.dumps(INPUT)})
    assert not path.exists()


# ---- recipes ----

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(f'*{before}' for _ in range(9))}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGED = "a: &a {k: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join(f'*{before}' for _ in range(9))}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {name: 2020-01-01}", "model.name is datetime.date.*put text in quotes"),
        ("model: {args: {a: 2020-01-01 10:00:00}}", "a datetime"),
        ("model: {args: !!set {a, b}}", "a set"),
        ("model: {args: {a: !!binary aGVsbG8=}}", "a bytes"),
        ("a: !!int x", "is not YAML"),
        ("a: !!float x", "is not YAML"),
        ("a: !!timestamp x", "is not YAML"),
        (f"a: {'9' * 5000}", "is not YAML"),
        ("a: " + "[" * 100 + "]" * 100, "nested too deeply"),
        ("a: " + "[" * 50_000 + "]" * 50_000, "nested too deeply"),
        (LAUGHS, "more than 10000 values"),
        (MERGED, r"merge keys \(<<\) are not read"),
        ("a: {!!merge x: {b: 1}}", r"merge keys \(<<\) are not read"),
        ("a: 1" + ":1" * 400_000, "a number has more than 4300 characters"),
        ("a: 1" + ":1" * 400_000 + ".5", "a number has more than 4300 characters"),
        ("a: !!int {=: '1" + ":1" * 400_000 + "'}", "a number has more than 4300 characters"),
        ("a: &a [*a]", "nested too deeply"),
        ("? [1, 2]\n: 3", "is not YAML|is not text"),
        ("1.5: 3", "is not text"),
        ("x" * 2_000_000, "more than 1000000 bytes"),
        ("\ufffe", "is not YAML"),
    ],
    ids=range(21),
)
@pytest.mark.timeout(60)
def test_recipes(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        load_recipe(str(file))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.args.drop_path_rate=5", "drop_path_rate must be a number from 0 to below 1, got 5"),
        ("model.args.drop_rate=.nan", "drop_rate = nan"),
        ("model.args.features_only=true", "features_only makes a model without classes"),
        ("model.args.depths=[1000000]", "at most 1000"),
        ("data.workers=100000", "data.workers: input should be less than or equal to 512"),
        ("data.size=20000", "data.size: input should be less than or equal to 8192"),
        ("data.crop_pct=0.001", "data.size / data.crop_pct must be at most 8192"),
        ("data.std=[1e-300, 1, 1]", "data.std"),
        ("data.mean=[.inf, 1, 1]", "data.mean"),
    ],
)
def test_numbers_of_recipes(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_recipe("digits", [override])


def test_a_model_that_can_not_be_built_says_why(tmp_path: Path) -> None:
    """Also where the error that it raises says nothing."""
    from laplacianformer.classification._model import create_model

    recipe = load_recipe("digits", ["model.name=vit_tiny_patch16_224", "model.args={qkv_bias: 1, num_heads: 7}"])
    with pytest.raises(InputError, match=r"can't create model.name=vit_tiny_patch16_224: \S+"):
        create_model(recipe, tuple("0123456789"))


# ---- COCO files ----


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return detection.coco_folder(tmp_path / "data", train=2, val=1)


def test_coco_images_that_nothing_can_hold(folder: Path) -> None:
    def edit(tree: dict[str, Any]) -> None:
        tree["images"][0].update(width=100_000, height=100_000)
        for entry in tree["annotations"]:
            entry.pop("area", None)

    detection.change(folder, "train", edit)
    with pytest.raises(InputError, match="100000 x 100000 pixels: at most 178956970"):
        open_folder(folder)


def test_coco_files_that_are_nested_deeply(folder: Path) -> None:
    (folder / "instances_train.json").write_text(DEEP)
    with pytest.raises(InputError, match="nested too deeply"):
        open_folder(folder)


def test_the_area_of_a_mask_is_counted_without_it(folder: Path) -> None:
    expected = [entry["area"] for entry in open_folder(folder).tree["annotations"]]
    detection.change(folder, "train", lambda tree: [entry.pop("area") for entry in tree["annotations"]])
    assert [entry["area"] for entry in open_folder(folder).tree["annotations"]] == expected


# ---- options and environment ----


def test_the_meta_device_is_refused() -> None:
    with pytest.raises(InputError, match="'meta' can't be used here: it holds no numbers"):
        chosen_device("meta")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("LAPLACIANFORMER_BACKEND", "fast", "unknown backend 'fast'"),
        ("LAPLACIANFORMER_CPU_LEVEL", "mmx", "LAPLACIANFORMER_CPU_LEVEL is 'mmx'"),
    ],
)
@pytest.mark.slow
def test_the_environment(variable: str, value: str, message: str, run_fresh: Callable[..., str]) -> None:
    program = (
        "import runpy, sys\n"
        "sys.argv = ['laplacianformer', 'predict', 'no-such/image.png']\n"
        "try: runpy.run_module('laplacianformer', run_name='__main__')\n"
        "except SystemExit as ended: assert ended.code == 2, ended.code\n"
    )
    (line,) = run_fresh(program, **{variable: value}).splitlines()
    assert message in line


@pytest.mark.skipif(not DOCS.exists(), reason="the tests run outside of a checkout")
def test_the_page_on_limits_has_every_number() -> None:
    page = (DOCS / "limits.md").read_text().replace(",", "")
    said = {float(number) for number in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?", page)}
    for name, value in vars(limits).items():
        if name.isupper() and not name.startswith("_"):
            for number in value if isinstance(value, tuple) else (value,):
                assert float(number) in said, name


def test_values_are_shown_in_one_short_line() -> None:
    for value in ("a\nb", "x" * 10_000, 10**5000, DEEP, torch.zeros(100), "\ud800", yaml, [[]] * 1000):
        assert "\n" not in limits.shown(value)
        assert len(limits.shown(value)) < 250
        limits.shown(value).encode()
    assert limits.reason(AssertionError()) == "AssertionError"
