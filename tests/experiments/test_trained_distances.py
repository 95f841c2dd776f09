"""Tails of distances in weights that were trained elsewhere, with intervals over images."""

import json

import pytest
import torch

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
