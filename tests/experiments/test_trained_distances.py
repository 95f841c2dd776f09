"""Tails of distances in weights that were trained elsewhere, with intervals over images."""

import json
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from laplacianformer import cli
from laplacianformer.experiments import qk_distances, trained_distances
from laplacianformer.experiments.rows import read_rows
from tests.helpers import save_small

pytest.importorskip("matplotlib")


def test_intervals_are_those_of_images_that_are_drawn_again() -> None:
    """Against the kurtosis of the pairs themselves, repeated as often as their image was drawn."""
    values, image = torch.rand(2, 200, dtype=torch.float64).exp(), torch.randint(0, 5, (200,))
    counts = trained_distances.resampled(5)
    assert counts.shape == (1 + trained_distances.DRAWS, 5)
    assert (counts.sum(1) == 5).all()
    found = trained_distances.excess_kurtosis(values, image, counts[:4])
    for row, one in zip(counts[:4], found, strict=True):
        repeated = values.repeat_interleave(row.long()[image], dim=1)
        assert float(one) == pytest.approx(qk_distances.tails(repeated)["excess_kurtosis"], rel=1e-4)


@pytest.mark.parametrize(
    ("l1", "squared", "spread", "verdict"),
    [
        (0.5, 3.0, 0.2, "agrees"),
        (0.1, 0.5, 0.2, "agrees in part"),
        (2.9, 2.91, 0.2, "agrees in part"),
        (3.0, 0.5, 0.1, "disagrees"),
    ],
)
def test_a_tail_must_be_heavy_and_heavier_beyond_the_intervals(
    l1: float, squared: float, spread: float, verdict: str
) -> None:
    noise = 0.05 * torch.randn(1001, dtype=torch.float64)
    kurtoses = {"l1": l1 - noise, "l2 squared": squared + noise, "l2": 0.1 + noise}
    outcome = trained_distances.judge(kurtoses, {"l1": 0.1, "l2 squared": spread}, "here")
    assert outcome.verdict == verdict


def test_pairs_of_batches_are_those_of_their_images(monkeypatch) -> None:
    """Images are multiples of the first, and so are their distances."""
    layer = timm.layers.Attention(8, num_heads=2)
    model = nn.Sequential(layer).eval()
    images = torch.randn(1, 4, 8) * torch.arange(1.0, 8).view(-1, 1, 1)
    for size in (7, 3):
        monkeypatch.setattr(qk_distances, "BATCH_SIZE", size)
        found = qk_distances.distances(model, images)
        (image,), ((name, values),) = found.images, found.by_kind["l1"]
        assert (name, set(image.tolist())) == ("0", set(range(7)))
        assert values.shape[1] == len(image) > 0.99 * qk_distances.PAIRS
        largest = torch.stack([values[0, image == number].max() for number in range(7)])
        torch.testing.assert_close(largest / largest[0], torch.arange(1.0, 8).double(), rtol=1e-4, atol=0)


def test_from_the_command_line_to_the_plot(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(qk_distances, "PAIRS", 256)
    save_small(tmp_path / "small.safetensors")
    command = ["reproduce", "trained-distances", "--quick", "--output", str(tmp_path)]
    with pytest.raises(SystemExit):
        cli.main(command)
    cli.main([*command, "--weights", str(tmp_path / "small.safetensors")])
    folder = tmp_path / "trained-distances"
    assert {row["distance"] for row in read_rows(folder / "tails.csv")} == set(qk_distances.DISTANCES)
    written = json.loads((folder / "verdict.json").read_text())
    assert written["command"] == "laplacianformer reproduce trained-distances --quick --weights FILE"
    assert "laplacianformer_nano on 8 images" in written["measured"]
    assert (folder / "trained-distances.png").is_file()


def test_tensors_alone_need_the_name_of_their_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(qk_distances, "PAIRS", 256)
    name = "vit_tiny_patch16_224"
    save_file(timm.create_model(name, depth=1, num_classes=3).state_dict(), tmp_path / "raw.safetensors")
    given = ["--quick", "--output", str(tmp_path), "--weights", str(tmp_path / "raw.safetensors")]
    with pytest.raises(SystemExit):
        cli.main(["reproduce", "trained-distances", *given])
    assert "name that with --model NAME" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["reproduce", "qk-distances", *given])
    assert "trained-distances takes --weights" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["reproduce", "trained-distances", *given, "--model", name])
    assert f"does not hold the {name}" in capsys.readouterr().err
    save_file(timm.create_model(name, num_classes=3).state_dict(), tmp_path / "raw.safetensors")
    cli.main(["reproduce", "trained-distances", *given, "--model", name])
    assert len(read_rows(tmp_path / "trained-distances" / "tails.csv")) == 3 * 12
    written = json.loads((tmp_path / "trained-distances" / "verdict.json").read_text())
    assert written["command"].endswith(f"trained-distances --quick --model {name} --weights FILE")
