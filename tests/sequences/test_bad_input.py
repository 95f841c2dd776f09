"""Weights files, recipes, folders and names that nobody should trust: one line each, quickly, and the others go on."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from laplacianformer import sequences
from laplacianformer._util.errors import InputError
from laplacianformer._util.tensor_files import read_tensors, write_tensors
from laplacianformer.sequences import Wanted, open_sequences
from tests.data.test_links import deep_folder
from tests.export.helpers import code_of
from tests.sequences import helpers
from tests.test_limits import LAUGHS, refused, rewrite

ARGUMENTS: dict[str, Any] = {"dim": 16, "num_heads": 2, "mlp_dim": 16, "landmarks": 4, "depth": 1}
CLASSES = {"text": ("neg", "pos"), "listops": tuple("0123456789")}


def save(path: Path, sequence: str = "text", length: int = 48) -> dict[str, Any]:
    """A weights file, and the arguments in it."""
    vocabulary = {"text": 257, "listops": 16}[sequence]
    model = sequences.SequenceEncoder(vocabulary, length, len(CLASSES[sequence]), **ARGUMENTS)
    sequences.save_encoder(path, model, sequence=sequence, classes=CLASSES[sequence])
    return model.arguments


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


# ---- weights files ----


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 10**6}, "depth = 1000000: at most 1000"),
        ({"length": 10**9}, "length = 1000000000: at most 100000"),
        ({"attention_args": {"iterations": 10**9}}, "attention_args.iterations = 1000000000: at most 1000"),
        ({"attention_args": [1]}, "expected attention_args with names"),
        ({"dim": 90_000, "mlp_dim": 90_000}, "does not hold the sequence_encoder that it names"),
        ({"num_heads": "x"}, "can't be built"),
        ({"vocabulary": "x" * 10_000}, "expected a vocabulary of 257"),
    ],
)
def test_arguments_are_checked_before_anything_is_built(path: Path, arguments: dict[str, Any], message: str) -> None:
    stated = save(path)
    rewrite(path, model_args=json.dumps({**stated, **arguments}))
    refused(path, message, sequences.load_encoder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": json.dumps(["x" * 100_000, "y\nz", "q"])}, "for an encoder of 2 classes"),
        ({"classes": '["pos", "pos"]'}, "names .'pos', 'pos'. for an encoder of 2 classes: expected as many different"),
        ({"classes": '[["a"], ["b"]]'}, "for an encoder of 2 classes"),
        ({"sequence": "x\n\x1b[31m" * 1000}, "expected one of listops"),
        ({"architecture": "x\n" * 1000}, "is not an encoder of this package"),
    ],
)
def test_errors_about_a_file_are_one_short_line(path: Path, changes: dict[str, str], message: str) -> None:
    save(path)
    rewrite(path, **changes)
    refused(path, message, sequences.load_encoder)


# ---- the recipe in a weights file ----


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("x", "expected keys and values, got 'x'"),
        ("null", "expected keys and values, got None"),
        ("data: [1]", "expected keys and values"),
        ("[", "is not YAML"),
        ("data: " + "[" * 50 + "]" * 50, "nested too deeply"),
        (LAUGHS, "more than 10000 values"),
        ("x" * 2_000_000, "more than 1000000 bytes"),
        ("data: {workers: bad}", "section data: workers: input should be a valid integer"),
        ("data: {shortest: 4000}", "data.shortest must be at least 4 below data.length, got 4000 and 48"),
        ("{}", "data.shortest must be at least 4 below data.length, got 500 and 48"),
    ],
    ids=range(10),
)
def test_a_recipe_in_a_weights_file_is_not_trusted(path: Path, recipe: str, message: str) -> None:
    save(path, "listops")
    rewrite(path, recipe=recipe)
    loaded = sequences.load_encoder(path)
    with pytest.raises(InputError, match=message) as caught:
        sequences.open_batches(loaded, "listops")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.workers=100000", "data.workers: input should be less than or equal to 512"),
        ("data.length=1000000000", "data.length: input should be less than or equal to 100000"),
        ("encoder.depth=1000000", "encoder.depth: input should be less than or equal to 1000"),
        ("encoder.mlp_dim=1000000000", "encoder.mlp_dim: input should be less than or equal to 100000"),
        ("encoder.attention_args={iterations: 1000000000}", "iterations = 1000000000: at most 1000"),
    ],
)
def test_numbers_of_recipes(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sequences.load_recipe("lra-listops", [override])


# ---- folders of texts ----


def test_the_class_is_the_first_level_and_each_real_text_counts_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train = helpers.text_folder(tmp_path) / "train"
    (train / "pos" / "2024").mkdir()
    (train / "pos" / "2024" / "a.txt").write_text("good")
    (train / "pos" / "again.txt").symlink_to(train / "pos" / "0.txt")
    (train / "urls_pos.txt").write_text("beside the classes, as in IMDb")
    os.mkfifo(train / "neg" / "pipe.txt")
    opened = open_sequences(Wanted("text", "train", 10, str(tmp_path)))
    assert [opened.read(index)[1] for index in range(len(opened))] == [0] * 12 + [1] * 13
    assert opened.name(24) == str(train / "pos" / "9.txt"), "what is deeper comes where its name belongs"
    assert caplog.messages == [
        f"{train}: left out 1 symbolic links to files or folders that are listed anyway: {train / 'pos' / 'again.txt'}",
        f"{train}: left out 1 named pipes, devices or sockets: {train / 'neg' / 'pipe.txt'}",
        f"{train}: 1 *.txt files are in subfolders of the class folders and count for the class: neg 12, pos 13",
    ]
    (train / "other").symlink_to(train / "neg")
    with pytest.raises(InputError, match=r"train/other has no \*\.txt files of its own"):
        open_sequences(Wanted("text", "train", 10, str(tmp_path)))


@pytest.mark.timeout(60)
def test_predict_goes_on_after_pipes_long_names_and_folders_that_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "text.safetensors")
    save(tmp_path / "listops.safetensors", "listops")
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("good")
    os.mkfifo(folder / "pipe.txt")
    deep_folder(folder, monkeypatch)
    long = str(tmp_path / ("y" * 300))

    loaded = sequences.load_encoder(tmp_path / "text.safetensors")
    found = list(sequences.predict(loaded, [long, str(folder), str(folder / "pipe.txt"), str(folder / "*.txt")]))
    assert [(Path(each.name).name[:8], each.failure) for each in found] == [
        ("y" * 8, "File name too long"),
        ("a.txt", ""),
        ("x" * 8, "can't be listed: File name too long"),
        ("pipe.txt", "not a regular file"),
        ("a.txt", ""),
        ("pipe.txt", "not a regular file"),
    ]
    loaded = sequences.load_encoder(tmp_path / "listops.safetensors")
    found = list(sequences.predict(loaded, [long, "[MIN 1 2 ]"]))
    assert [(each.name, each.failure) for each in found] == [(long, "File name too long"), ("[MIN 1 2 ]", "")]


# ---- numbers that are not finite ----


@pytest.mark.parametrize("command", ["predict", "eval"])
def test_an_encoder_that_is_not_finite_is_an_error_that_names_the_layer(
    path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(path, "listops")
    tensors, metadata = read_tensors(path)
    name = next(name for name in tensors if name.endswith("attention.proj.bias"))
    tensors[name][0] = torch.nan
    write_tensors(
        path, tensors, {**metadata, "recipe": helpers.write_recipe(path.with_name("recipe.yaml")).read_text()}
    )
    given = ["[MIN 1 2 ]"] if command == "predict" else ["--data", "listops"]
    assert code_of([command, "--weights", str(path), *given]) == 2
    said = f"{path} gives outputs that are not finite: the weights {name} are already not finite"
    assert said in capsys.readouterr().err
