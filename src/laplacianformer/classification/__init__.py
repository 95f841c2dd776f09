"""Image classification: recipe, batches, task, inference, evaluation, pictures."""
