"""What the experiments that train conclude from accuracies that were made by hand."""

import pytest

from laplacianformer.experiments import (
    attention,
    defaults,
    kernel_convergence,
    other_kernels,
    trainings,
    variants,
    whitening,
)
from laplacianformer.experiments.branches import Branch
from tests.experiments.helpers import rows

pytest.importorskip("matplotlib")


@pytest.mark.parametrize(
    ("others", "verdict"),
    [
        ({"b": [57, 58, 59], "c": [50, 51, 52]}, "agrees"),
        ({"b": [57, 58, 59], "c": [59, 62, 61]}, "agrees in part"),
        ({"b": [59, 62, 61], "c": [61, 60, 62]}, "not confirmed at this scale"),
        ({"b": [57, 58, 59], "c": [70, 71, 72]}, "disagrees"),
    ],
)
def test_only_differences_beyond_the_noise_count(others, verdict) -> None:
    outcome = variants.judge(rows("kind", a=[60, 61, 62], **others), "kind", "a")
    assert outcome.verdict == verdict
    assert "a 61.00 ± 1.00, b " in outcome.measured


def test_only_the_named_rivals_count() -> None:
    found = rows("kind", a=[60, 61, 62], b=[57, 58, 59], c=[70, 71, 72])
    assert variants.judge(found, "kind", "a", ["b"]).verdict == "agrees"


@pytest.mark.parametrize(
    ("mean", "worth", "verdict"),
    [
        ([50, 51, 52], "+10.00 ± 0.00", "agrees"),
        ([58, 59, 60], "+2.00 ± 0.00", "agrees"),
        ([58.1, 59.1, 60.1], "+1.90 ± 0.00", "attention does not matter here"),
        ([70, 71, 72], "-10.00 ± 0.00", "attention does not matter here"),
    ],
)
def test_nothing_is_said_where_attention_is_worth_less_than_two_points(mean, worth, verdict) -> None:
    """Over the better of the controls; the other one is 20 points behind."""
    given = {"a": [60, 61, 62], "b": [57, 58, 59], "no mixing": [40, 41, 42], "mean over queries": mean}
    outcome = variants.judge(rows("kind", **given), "kind", "a")
    assert f"Attention is worth {worth} points here (a minus mean over queries, the better control" in outcome.measured
    assert outcome.verdict == verdict


@pytest.mark.parametrize(
    ("gaussian", "softmax", "verdict"),
    [
        ([57, 58, 59], [60, 61, 62], "agrees"),
        ([59, 62, 61], [60, 61, 62], "not confirmed at this scale"),
        ([63, 64, 65], [50, 51, 52], "disagrees"),
        ([57, 58, 59], [70, 71, 72], "disagrees"),
    ],
)
def test_attention_is_to_beat_the_gaussian_and_not_to_lose_to_softmax(gaussian, softmax, verdict) -> None:
    """Each kernel in whichever of its two forms is the better one; what a classifier does changes no verdict."""
    images = [
        row | {"vehicle": trainings.CLASSIFIER}
        for row in rows("attention", laplacian=[30, 31, 32], softmax=[50, 51, 52])
    ]
    for ours in (attention.OURS, attention.OURS[::-1]):
        for rival in (attention.GAUSSIAN, attention.GAUSSIAN[::-1]):
            forms = {ours[0]: [60, 61, 62], ours[1]: [45, 46, 47], rival[0]: gaussian, rival[1]: [45, 46, 47]}
            pixels = [row | {"vehicle": trainings.PROBE} for row in rows("attention", softmax=softmax, **forms)]
            outcome = attention.judge([*pixels, *images])
            assert outcome.verdict == verdict
            assert "softmax 51.00" in outcome.measured.partition("classifies images")[2]


@pytest.mark.parametrize(
    ("forms", "matern", "verdict"),
    [
        (([60, 61, 62], [50, 51, 52]), [57, 58, 59], "agrees"),
        (([50, 51, 52], [60, 61, 62]), [57, 58, 59], "agrees"),
        (([60, 61, 62], [50, 51, 52]), [59, 62, 61], "agrees in part"),
        (([50, 51, 52], [60, 61, 62]), [70, 71, 72], "disagrees"),
    ],
)
def test_the_laplacian_kernel_counts_in_its_better_form(forms, matern, verdict) -> None:
    """The Gaussian and the Matern kernel are the others."""
    kernels = dict(zip(other_kernels.FORMS, forms, strict=True))
    found = rows("kernel", **kernels, **{"gaussian": [55, 56, 57], "matern, normalised": matern})
    assert other_kernels.judge(found).verdict == verdict


@pytest.mark.parametrize(
    ("none", "full", "verdict"),
    [
        ([57, 58, 59], [60, 62, 61], "agrees"),
        ([59, 62, 61], [60, 62, 61], "not confirmed at this scale"),
        ([57, 58, 59], [63, 64, 65], "disagrees"),
    ],
)
def test_diagonal_whitening_is_to_beat_none_and_not_to_lose_to_the_full_one(none, full, verdict) -> None:
    found = rows("whitening", running=[60, 61, 62], none=none, full=full)
    assert whitening.judge(found).verdict == verdict


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, "not confirmed at this scale"),
        ({name: [57, 58, 59] for name in defaults.CROSSED}, "agrees"),
        ({"crossed, 2 steps": [57, 58, 59]}, "agrees in part"),
        ({name: [57, 58, 59] for name in defaults.CROSSED} | {"2 steps": [63, 64, 65]}, "disagrees"),
    ],
)
def test_defaults_are_not_to_lose_and_to_beat_the_crossed_gram_matrix(changed, verdict) -> None:
    same = {name: [60, 62, 61] for name in defaults.CHOICES} | {"default": [60, 61, 62]}
    assert defaults.judge(rows("choice", **same | changed)).verdict == verdict


def curve(variant, *accuracies):
    return [
        {"variant": variant, "seed": str(seed), "epoch": str(epoch), "validation_accuracy": str(value / 100)}
        for seed, values in enumerate(accuracies)
        for epoch, value in enumerate(values)
    ]


def test_faster_convergence_is_told_from_a_better_end() -> None:
    """Ahead in the first epoch and equal in the last: faster."""
    slow, fast = [[20, 50], [22, 52], [24, 54]], [[30, 50], [32.5, 52], [33.5, 54]]
    points = [
        point
        for model in ("SOFT++", "Skyformer", "LaplacianFormer")
        for kernel, found in (("laplacian", fast), ("gaussian", slow))
        for point in curve(f"{model}, {kernel}", *found)
    ]
    ends = rows("variant", **{"LaplacianFormer, laplacian": [50, 52, 54]})
    branches = {"SOFT++, laplacian": (Branch(0.015, 0.005), Branch(0.02, 0.1))}
    outcome = kernel_convergence.judge(ends, points, branches)
    assert "before and after training: SOFT++, laplacian 0.015 and 0.5 %, then 0.020 and 10.0 %." in outcome.measured
    assert outcome.verdict == "agrees"
    assert "SOFT++ +5.00 ± 0.62 and +0.00 ± 0.00" in outcome.measured
    mirrored = [
        point | {"variant": point["variant"].replace("laplacian", "x").replace("gaussian", "laplacian")}
        for point in points
    ]
    mirrored = [point | {"variant": point["variant"].replace(", x", ", gaussian")} for point in mirrored]
    assert kernel_convergence.judge(ends, mirrored, branches).verdict == "disagrees"
    level = rows("variant", **{"LaplacianFormer, laplacian": [50, 52, 54], "no mixing": [50, 52, 54]})
    assert kernel_convergence.judge(level, points, branches).verdict == "attention does not matter here"
