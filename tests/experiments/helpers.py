"""Rows of trainings that were not made, with accuracies by hand."""

from laplacianformer.experiments import trainings


def rows(column: str, **accuracies: list[float]) -> list[dict[str, str]]:
    """Accuracies in percent by seed, with those of both controls."""
    controls = {name: [40, 41, 42] for name in trainings.CONTROLS}
    return [
        {column: kind, "seed": str(seed), "validation_accuracy": str(value / 100)}
        for kind, values in (controls | accuracies).items()
        for seed, value in enumerate(values)
    ]
