"""The figures and tables of the paper, each as a command: `laplacianformer reproduce NAME`."""

from laplacianformer.experiments.frame import EXPERIMENTS, Experiment, Outcome, Reproduced, Settings, find, reproduce

__all__ = ["EXPERIMENTS", "Experiment", "Outcome", "Reproduced", "Settings", "find", "reproduce"]
