"""WebDataset takes `pipe:COMMAND` for a shell command: none runs that the command line did not allow."""

import shlex
from pathlib import Path

import pytest
import yaml

from laplacianformer._util.errors import InputError
from laplacianformer.classification._batches import open_loaders
from laplacianformer.cli import main
from laplacianformer.data._shards import Shards
from laplacianformer.data._sources import Source, open_images
from laplacianformer.training import _recipes as recipes
from tests.convert.helpers import save_teacher, teacher
from tests.data.helpers import noise, shard
from tests.data.test_shards import recipe
from tests.helpers import save_small

pytest.importorskip("webdataset")
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves its files open


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """The file that the command of `pipe` makes when it runs."""
    return tmp_path / "ran"


def pipe(ran: Path, start: str = "pipe:") -> str:
    return f"{start}touch {shlex.quote(str(ran))}; cat {shlex.quote(str(ran.parent))}/"


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The line with which a command ends."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    assert stop.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "--allow-pipes" in said
    return said


def test_no_command_that_takes_data_runs_a_pipe_by_itself(tmp_path, ran, capsys) -> None:
    shard(tmp_path / "val-0.tar", [(noise(0), 0)])
    save_small(tmp_path / "model.safetensors")
    data = ["--data", f"wds/some:{pipe(ran)}"]
    weights = ["--weights", tmp_path / "model.safetensors"]
    output = ["--output", tmp_path / "out"]
    for command in (
        ["eval", *weights, *data, "--split", "val-0.tar", *output],
        ["export", *weights, *data, "--format", "onnx", tmp_path / "out.onnx"],
        ["train", "--recipe", "digits", *data, *output, "data.num_classes=1", "data.val_split=val-0.tar"],
    ):
        refused(capsys, *command)
        assert not ran.exists(), command[0]


@pytest.mark.parametrize(
    "data",
    [[], ["--allow-pipes"], ["--allow-pipes", "--data", "wds/some:"]],
    ids=["alone", "allowed without --data", "allowed with a reader alone"],
)
def test_no_recipe_runs_a_pipe(tmp_path, ran, capsys, data) -> None:
    written = recipe(tmp_path, root=pipe(ran))
    (tmp_path / "own.yaml").write_text(recipes.as_yaml(written))
    refused(capsys, "train", "--recipe", tmp_path / "own.yaml", "--output", tmp_path / "out", *data)
    assert not ran.exists()


@pytest.mark.parametrize("allowed", [[], ["--allow-pipes"]], ids=["alone", "allowed"])
def test_no_recipe_of_a_conversion_runs_a_pipe(tmp_path, ran, capsys, allowed) -> None:
    data = {"reader": "wds/some", "root": pipe(ran), "train_split": "val-0.tar", "val_split": "val-0.tar"}
    own = yaml.safe_load(recipes._read("convert-vit"))
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({**own, "data": {**own["data"], **data}}))
    save_teacher(tmp_path / "model.safetensors", teacher())
    options = ["--recipe", tmp_path / "own.yaml", "--data", "wds/some:", "--output", tmp_path / "new.safetensors"]
    refused(capsys, "convert", tmp_path / "model.safetensors", *options, *allowed)
    assert not ran.exists()


@pytest.mark.parametrize("start", ["PIPE:", " pipe:", "\tPipe:", "pi\npe:", "pipe://x;", "pipe://[", "x:pipe:"])
def test_other_spellings_of_a_pipe_are_refused(ran, start) -> None:
    with pytest.raises(InputError):
        open_images(Source("wds/some", pipe(ran, start), "val-0.tar", 1))
    assert not ran.exists()


@pytest.mark.parametrize(
    ("root", "name"),
    [
        ("pipe://;>{ran};/", "val-0.tar"),
        ("", "pipe:touch {ran} #.tar"),
        ("https://127.0.0.1:9/';touch {ran};'", "val-0.tar"),
        ("https://127.0.0.1:9/", "';touch {ran};'.tar"),
    ],
    ids=["like a URL", "name alone", "quote in the root", "quote in the name"],
)
def test_a_name_or_url_is_no_way_around(ran, root, name) -> None:
    with pytest.raises(InputError):
        open_images(Source("wds/some", root.format(ran=ran), name.format(ran=ran), 1))
    assert not ran.exists()


def test_a_shard_whose_name_is_a_command_is_refused_also_where_pipes_are_allowed(tmp_path, ran) -> None:
    root = f"pipe:cat {shlex.quote(str(tmp_path))}/"
    with pytest.raises(InputError, match="the shard"):
        open_images(Source("wds/some", root, f"val-0.tar; touch {ran}", 1, allow_pipes=True))
    assert not ran.exists()


def test_an_allowed_pipe_is_read(tmp_path, ran) -> None:
    shard(tmp_path / "train-0.tar", [(noise(label), label) for label in range(24)])
    shard(tmp_path / "val-0.tar", [(noise(label), label) for label in range(7)])
    batches = list(open_loaders(recipe(tmp_path, count=1, root=pipe(ran)), allow_pipes=True).val)
    assert sorted(int(label) for batch in batches for label in batch.targets) == list(range(7))
    assert ran.exists()


def test_urls_stay_what_they_are() -> None:
    root = "https://example.org/shards/"
    assert Shards([f"{root}a.tar"], ["one"], 1).urls == (f"{root}a.tar",)
