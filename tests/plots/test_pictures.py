"""Pictures are whole PNGs that show what they were given, whatever is missing or odd in it."""

import csv
import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from laplacianformer import plots
from laplacianformer._util.errors import InputError
from laplacianformer.classification.pictures import draw_confusion, draw_predictions
from laplacianformer.inspect.attention_maps import AttentionMap, attention_maps
from tests.helpers import CLASSES, picture, save_small, small_model
from tests.model.helpers import images

COLUMNS = (
    "step", "epoch", "loss", "lr", "accuracy", "images_per_second", "gradient_norm", "kernel_mean", "residual",
    "validation_loss", "validation_accuracy",
)  # fmt: skip


def metrics(path, rows=40, columns=COLUMNS, **cells):
    """A training's rows; every tenth is of the held-out pictures."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        for step in range(1, rows + 1):
            row = {"step": step, "epoch": step // 10, "loss": 2 / step, "lr": 1e-3, "accuracy": 1 - 1 / step}
            row |= {"images_per_second": 100, "gradient_norm": 1 / step, **cells}
            if step % 10 == 0:
                row = {"step": step, "epoch": step // 10, "validation_loss": 1 / step, "validation_accuracy": 0.9}
                row |= {"kernel_mean": 0.1, "residual": 0.01}
            writer.writerow(row)
    return path


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved."""
    figures, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *args, **kwargs: (figures.append(self), save(self, *args, **kwargs))
    )
    return figures


def axes_of(figure):
    return [axis for axis in figure.get_axes() if axis.get_title(loc="left")]


def check_png(path):
    with Image.open(path) as image:
        image.load()
        assert image.format == "PNG"
        assert min(image.size) > 200
        assert np.asarray(image.convert("L")).std() > 5
    assert [name for name in os.listdir(path.parent) if "partial" in name] == []


def test_a_training_curve_has_a_panel_for_each_measurement(tmp_path, drawn):
    plots.training_curve(metrics(tmp_path / "metrics.csv"), tmp_path / "curve.png")
    check_png(tmp_path / "curve.png")
    titles = [axis.get_title(loc="left") for axis in axes_of(drawn[0])]
    assert titles == [
        "loss", "accuracy", "learning rate", "gradient norm", "kernel mean", "residual of the inverse", "speed",
    ]  # fmt: skip
    loss, accuracy = axes_of(drawn[0])[:2]
    assert list(loss.lines[0].get_ydata()) == pytest.approx([2 / step for step in range(1, 41) if step % 10])
    assert list(loss.lines[2].get_xdata()) == [10, 20, 30, 40]
    assert list(accuracy.lines[2].get_ydata()) == pytest.approx([90] * 4)
    assert all(axis.get_xlabel() == "step" for axis in axes_of(drawn[0]))


@pytest.mark.parametrize(
    ("options", "titles"),
    [
        ({"columns": ("step", "loss")}, ["loss"]),
        ({"columns": ("step", "lr", "residual"), "rows": 1}, ["learning rate"]),
        ({"loss": "nan", "gradient_norm": "inf", "rows": 9}, ["accuracy", "learning rate", "speed"]),
        ({"loss": "oops", "accuracy": "", "gradient_norm": 0, "rows": 1}, ["learning rate", "gradient norm", "speed"]),
    ],
    ids=str,
)
def test_what_was_not_measured_is_left_out(tmp_path, drawn, options, titles):
    plots.training_curve(metrics(tmp_path / "metrics.csv", **options), tmp_path / "curve.png")
    check_png(tmp_path / "curve.png")
    assert [axis.get_title(loc="left") for axis in axes_of(drawn[0])] == titles


@pytest.mark.parametrize("content", [None, b"", b"step,loss\n", b"\xff\xfe\x00", b"a,b\n1,2\n"], ids=str)
def test_metrics_that_hold_nothing_are_told_and_nothing_is_drawn(tmp_path, content):
    if content is not None:
        (tmp_path / "metrics.csv").write_bytes(content)
    with pytest.raises(InputError, match=r"metrics\.csv"):
        plots.training_curve(tmp_path / "metrics.csv", tmp_path / "curve.png")
    assert not (tmp_path / "curve.png").exists()


@pytest.mark.parametrize("count", [1, 3, 9])
def test_a_sheet_names_what_is_right_and_what_is_not(tmp_path, drawn, count):
    truth = [number % 7 for number in range(count)]
    predicted = [number if number != 2 else 5 for number in truth]
    probabilities = torch.nn.functional.one_hot(torch.tensor(predicted), 7).numpy() * 0.8 + 0.2 / 7
    shown = [np.asarray(picture(number)) / 255 for number in range(count)]
    draw_predictions(shown, predicted, probabilities, truth, CLASSES, tmp_path / "sheet.png", title="some")
    check_png(tmp_path / "sheet.png")
    titles = [axis.get_title() for axis in drawn[0].get_axes() if axis.get_title()]
    assert sorted(titles) == sorted("fox, is cat" if number == 2 else CLASSES[number] for number in truth)


@pytest.mark.parametrize("classes", [["a", "b"], list(CLASSES), [f"class {n}" for n in range(100)]], ids=len)
def test_a_confusion_shows_counts_where_there_is_room(tmp_path, drawn, classes):
    counts = np.diag(np.full(len(classes), 11))
    counts[0, 1] = 3
    draw_confusion(counts.tolist(), classes, tmp_path / "confusion.png")
    check_png(tmp_path / "confusion.png")
    (axis, _) = drawn[0].get_axes()
    texts = [text.get_text() for text in axis.texts]
    assert texts == ([] if len(classes) == 100 else ["11", "3", *["11"] * (len(classes) - 1)])
    assert axis.images[0].get_array()[0, 1] == pytest.approx(100 * 3 / 14)


def test_a_class_without_pictures_and_names_like_mathematics_can_be_drawn(tmp_path):
    draw_confusion([[0, 0], [0, 0]], ["$\\frac$", "a$b_$"], tmp_path / "confusion.png")
    row = plots.AttentionRow("$\\x$", np.zeros((4, 4, 3)), [AttentionMap(1, (0, 0), torch.zeros(1, 2, 2))])
    plots.attention_map([row], tmp_path / "attention.png")
    draw_predictions([np.zeros((2, 2, 3))], [0], np.eye(2)[:1], [1], ["$\\q$", "$"], tmp_path / "sheet.png")
    for name in ("confusion.png", "attention.png", "sheet.png"):
        assert (tmp_path / name).stat().st_size > 1000


def test_an_attention_picture_shows_the_maps_over_the_picture(tmp_path, drawn):
    shown = images(32, batch=2)
    rows = [
        plots.AttentionRow(f"number {number}", np.full((32, 32, 3), 0.5), attention_maps(small_model(), shown[number]))
        for number in range(2)
    ]
    plots.attention_map(rows, tmp_path / "attention.png")
    check_png(tmp_path / "attention.png")
    stage = next(axis for axis in drawn[0].get_axes() if axis.get_title().startswith("stage 2, 8 x 8 tokens"))
    np.testing.assert_allclose(stage.images[1].get_array(), rows[0].maps[1].weights.mean(0).numpy() * 64)


def test_colours_are_centred_where_tokens_are_subtracted_and_spread_where_none_is(tmp_path, drawn):
    signed, positive = torch.linspace(-0.1, 0.3, 16).view(1, 4, 4), torch.linspace(0.05, 0.07, 16).view(1, 4, 4)
    maps = [
        AttentionMap(1, (2, 2), signed),
        AttentionMap(2, (2, 2), positive),
        AttentionMap(3, (0, 0), positive[:, :1, :1]),
    ]
    plots.attention_map([plots.AttentionRow("", np.zeros((8, 8, 3)), maps)], tmp_path / "attention.png")
    colours = [
        [axis.images[1].cmap(axis.images[1].norm(share)) for share in (axis.images[1].get_array().min(), 0.0, 4.0)]
        for axis in drawn[0].get_axes()
        if axis.get_title().startswith("stage")
    ]
    (least, zero, most), (pale, _, dark), _ = colours
    assert least[2] > least[0]  # blue
    assert min(zero[:3]) > 0.95  # white
    assert most[0] > most[2]  # red
    assert min(pale[:3]) > 0.9
    assert dark[1] < 0.1


def test_a_picture_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    output = tmp_path / "curve.png"
    output.write_bytes(b"old")

    def full(self, file, **_):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(InputError, match=r"can't write .*curve\.png: No space left"):
        plots.training_curve(metrics(tmp_path / "metrics.csv"), output)
    assert output.read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["curve.png", "metrics.csv"]


def test_without_matplotlib_the_reason_is_given_and_pyplot_is_left_alone(monkeypatch):
    """And recipes, which need the packages for training, are left alone too."""
    code = "import laplacianformer.classification.inference, laplacianformer.classification.evaluation, sys; "
    code += "sys.exit(bool({'matplotlib', 'pydantic', 'lightning'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"pip install 'laplacianformer\[plot\]'"):
        plots.require()


# ---- `make demo`, with a training that is over at once ----


@pytest.fixture
def demo(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    return importlib.import_module("digits")


def test_the_demo_draws_a_training_and_prints_where_everything_is(demo, tmp_path, monkeypatch, capsys):
    save_small(tmp_path / "model.safetensors")
    held_out = [(picture(number), number % 7) for number in range(30)]
    trained = demo.Trained(tmp_path / "model.safetensors", metrics(tmp_path / "metrics.csv"), held_out)
    monkeypatch.setattr(demo, "_train", lambda output: trained)
    output = tmp_path / "new" / "demo"
    demo.main(["--output", str(output)])
    names = ["attention.png", "confusion.png", "predictions.png", "training.png"]
    assert sorted(path.name for path in output.iterdir()) == names
    out = capsys.readouterr().out
    assert "of 30 (" in out
    for name in names:
        check_png(output / name)
        assert name in out.replace("\n", "")


def test_the_demo_says_when_there_is_nothing_to_draw_with_before_it_trains(demo, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit) as stop:
        demo.main(["--output", str(tmp_path / "demo")])
    assert stop.value.code == 2
    assert "matplotlib" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()


def test_the_demo_says_when_it_can_not_write_before_it_trains(demo, tmp_path, capsys):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as stop:
        demo.main(["--output", str(tmp_path / "file" / "demo")])
    assert stop.value.code == 2
    assert capsys.readouterr().err.endswith("file/demo: Not a directory\n")
