"""Data sets and how they become batches."""
