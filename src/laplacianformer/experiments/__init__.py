"""The figures and tables of the paper, each as a command: `laplacianformer reproduce NAME`."""
