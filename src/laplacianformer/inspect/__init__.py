"""Looking into a model: diagnosis, attention maps, cost."""
