"""The training loop, recipes, checkpoints and metrics that all tasks share."""
