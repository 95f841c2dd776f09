"""The figures and tables of the paper, each as a command, `laplacianformer reproduce NAME`: programs, no interface. See
`laplacianformer.experiments.frame`."""

__all__: list[str] = []
