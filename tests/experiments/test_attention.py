import pytest

from laplacianformer.experiments import attention


def rows(**accuracies):
    return [
        {"attention": kind, "accuracy": str(value / 100)} for kind, values in accuracies.items() for value in values
    ]


@pytest.mark.parametrize(
    ("laplacian", "gaussian", "softmax", "verdict"),
    [
        ([60, 61, 62], [57, 58, 59], [60, 61, 62], "agrees"),
        ([60, 61, 62], [59, 62, 61], [60, 61, 62], "not confirmed at this scale"),
        ([57, 58, 59], [60, 61, 62], [50, 51, 52], "disagrees"),
        ([60, 61, 62], [57, 58, 59], [70, 71, 72], "disagrees"),
    ],
)
def test_the_verdict_follows_the_numbers(laplacian, gaussian, softmax, verdict) -> None:
    outcome = attention.judge(rows(laplacian=laplacian, gaussian=gaussian, softmax=softmax))
    assert outcome.verdict == verdict
    assert "Laplacian over Gaussian" in outcome.measured
