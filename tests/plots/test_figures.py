"""Figures are whole PNGs that show what they were given, whatever is missing or odd in it."""

import os
import sys

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from laplacianformer import plots
from laplacianformer._util.errors import InputError
from laplacianformer.inspect import TokenAttention, token_attention
from tests.helpers import small_model
from tests.model.helpers import images
from tests.plots.helpers import check_png, metrics, saved_figures


@pytest.fixture
def drawn(monkeypatch):
    return saved_figures(monkeypatch)


def axes_of(figure):
    return [axis for axis in figure.get_axes() if axis.get_title(loc="left")]


def test_a_training_curve_has_a_panel_for_each_measurement(tmp_path, drawn):
    plots.draw_training(metrics(tmp_path / "metrics.csv"), tmp_path / "curve.png")
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
    plots.draw_training(metrics(tmp_path / "metrics.csv", **options), tmp_path / "curve.png")
    check_png(tmp_path / "curve.png")
    assert [axis.get_title(loc="left") for axis in axes_of(drawn[0])] == titles


@pytest.mark.parametrize("content", [None, b"", b"step,loss\n", b"\xff\xfe\x00", b"a,b\n1,2\n"], ids=str)
def test_metrics_without_numbers_are_an_error_and_nothing_is_drawn(tmp_path, content):
    if content is not None:
        (tmp_path / "metrics.csv").write_bytes(content)
    with pytest.raises(InputError, match=r"metrics\.csv"):
        plots.draw_training(tmp_path / "metrics.csv", tmp_path / "curve.png")
    assert not (tmp_path / "curve.png").exists()


def test_a_figure_of_attention_shows_the_weights_over_the_image(tmp_path, drawn):
    shown = images(32, batch=2)
    rows = [
        plots.AttentionFigureRow(
            f"number {number}", np.full((32, 32, 3), 0.5), token_attention(small_model(), shown[number])
        )
        for number in range(2)
    ]
    plots.draw_attention(rows, tmp_path / "attention.png")
    check_png(tmp_path / "attention.png")
    stage = next(axis for axis in drawn[0].get_axes() if axis.get_title().startswith("stage 2, 8 x 8 tokens"))
    np.testing.assert_allclose(stage.images[1].get_array(), rows[0].stages[1].weights.mean(0).numpy() * 64)


def test_colours_are_centred_where_tokens_are_subtracted_and_spread_where_none_is(tmp_path, drawn):
    signed, positive = torch.linspace(-0.1, 0.3, 16).view(1, 4, 4), torch.linspace(0.05, 0.07, 16).view(1, 4, 4)
    maps = [
        TokenAttention(1, (2, 2), signed),
        TokenAttention(2, (2, 2), positive),
        TokenAttention(3, (0, 0), positive[:, :1, :1]),
    ]
    plots.draw_attention([plots.AttentionFigureRow("", np.zeros((8, 8, 3)), maps)], tmp_path / "attention.png")
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


def test_a_figure_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    output = tmp_path / "curve.png"
    output.write_bytes(b"old")

    def full(self, file, **_):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(InputError, match=r"can't write .*curve\.png: No space left"):
        plots.draw_training(metrics(tmp_path / "metrics.csv"), output)
    assert output.read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["curve.png", "metrics.csv"]


def test_without_matplotlib_the_reason_is_given(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"pip install 'laplacianformer\[plot\]'"):
        plots.require_matplotlib()


def test_names_that_look_like_mathematics_can_be_drawn(tmp_path):
    row = plots.AttentionFigureRow("$\\x$", np.zeros((4, 4, 3)), [TokenAttention(1, (0, 0), torch.zeros(1, 2, 2))])
    plots.draw_attention([row], tmp_path / "attention.png")
    assert (tmp_path / "attention.png").stat().st_size > 1000
