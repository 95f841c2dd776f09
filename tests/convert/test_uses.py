"""Around a conversion: a teacher with weights of timm's hub, and fine-tuning from a converted model."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch

from laplacianformer import InputError, classification, detection, load_weights, save_weights, segmentation
from laplacianformer.classification._model import create_model
from laplacianformer.cli import main
from laplacianformer.convert import Teacher
from laplacianformer.convert._teacher import load_teacher
from tests.convert.helpers import FAMILIES, QUICK, SIDE, save_teacher, teacher
from tests.convert.test_conversion import converted
from tests.helpers import INPUT, with_local_weights
from tests.training import helpers

NAME = "deit_tiny_patch16_224.fb_in1k"


@pytest.mark.slow
def test_a_teacher_has_the_weights_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_local_weights(monkeypatch, NAME, tmp_path / "hub.pth")
    helpers.image_folder(tmp_path / "data", size=SIDE)
    given = ["convert", NAME, "--data", str(tmp_path / "data"), "--output", str(tmp_path / "out.safetensors")]
    small = ["match.epochs=1", "distil.epochs=1", f"teacher.args={{img_size: {SIDE}}}", f"data.size={SIDE}"]
    main([*given, "--layers", "0", *QUICK, *small])
    assert (tmp_path / "out.safetensors").is_file()
    loaded: Any = load_weights(tmp_path / "out" / "match" / "model.safetensors")  # before all of it is trained
    assert json.loads(loaded.metadata["converted_from"])["weights"] == "timm, fb_in1k"
    assert loaded.metadata["architecture"] == "deit_tiny_patch16_224"
    assert len(loaded.classes) == 1000
    for name in ("head.weight", "blocks.3.attn.qkv.weight", "patch_embed.proj.weight"):
        assert torch.equal(loaded.model.state_dict()[name], model.state_dict()[name])


def test_without_a_connection_a_teacher_of_the_hub_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=f"can't create the teacher {NAME}: ") as caught:
        load_teacher(Teacher(name=NAME))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("side", [SIDE, 48])
def test_a_converted_model_is_fine_tuned(tmp_path: Path, side: int) -> None:
    """At its own size it starts as it was; at another, with its positions resampled. The file says what is in it."""
    save_teacher(tmp_path / "converted.safetensors", converted(teacher()))
    helpers.image_folder(tmp_path / "data", size=side)
    small = [f"data.root={tmp_path / 'data'}", f"data.size={side}", "data.cache=true", "data.workers=0"]
    small += ["optimise.epochs=1", "optimise.batch_size=6", "optimise.warmup_epochs=0", "augment.scale=null"]
    small += ["run.accelerator=cpu", "run.devices=1", f"model.weights={tmp_path / 'converted.safetensors'}"]
    recipe = classification.load_recipe("finetune", small)
    before, x = load_weights(tmp_path / "converted.safetensors").model, torch.randn(2, 3, side, side)
    start: Any = create_model(recipe, ("a", "b", "c"))[0].eval()
    assert start.conversion == before.conversion
    if side != SIDE:
        before.set_input_size((side, side))
    torch.testing.assert_close(start.forward_features(x), before.forward_features(x))
    loaded: Any = load_weights(classification.train(recipe, tmp_path / "run").weights)
    assert json.loads(loaded.metadata["converted"])["layers"] == list(before.conversion.layers)
    assert loaded.input["size"] == (3, side, side)
    assert loaded.model(x).shape == (2, 3)
    moved = loaded.model.state_dict()["blocks.1.attn.qkv.weight"] - start.state_dict()["blocks.1.attn.qkv.weight"]
    assert moved.abs().max() > 0


@pytest.mark.parametrize("kind", ["pvt", "own"])
@pytest.mark.parametrize("task", [detection, segmentation])
def test_a_converted_pyramid_is_a_backbone(tmp_path: Path, task: Any, kind: str) -> None:
    """Of a detector and a segmenter, whose files say which layers were exchanged."""
    repeated = {"depths": 1, "embed_dims": 16, "num_heads": 2, "mlp_ratios": 1}
    four: dict[str, Any] = {name: [value] * 4 for name, value in repeated.items()}
    four |= {"sr_ratios": [1] * 4} if kind == "pvt" else {"attention": "softmax"}
    said = {"model_args": json.dumps({**four, "num_classes": 5}), "input": json.dumps(INPUT)}
    path, model = tmp_path / f"{kind}.safetensors", converted(teacher(kind, **four)).eval()
    save_weights(path, model, classes=list("abcde"), metadata=said)

    name, build = FAMILIES[kind][0], task.retinanet if task is detection else task.semantic_fpn
    built = build(name, 3, path, backbone_args=four, channels=32).eval()
    maps = built.backbone.maps if task is detection else built.maps
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(list(maps(x).values())[-1], model.forward_intermediates(x)[1][-1])

    of_task, names = ("detector", "classes") if task is detection else ("segmenter", "labels")
    save, load = getattr(task, f"save_{of_task}"), getattr(task, f"load_{of_task}")
    for index in range(2):  # the second one starts from the file of the first, which is of the task
        save(tmp_path / f"{index}.safetensors", built, **{names: ["x", "y", "z"]})
        loaded = load(tmp_path / f"{index}.safetensors").model
        again = loaded.backbone.maps if task is detection else loaded.maps
        torch.testing.assert_close(list(again(x).values())[-1], list(maps(x).values())[-1])
        built = build(name, 3, tmp_path / f"{index}.safetensors", backbone_args=four, channels=32).eval()
