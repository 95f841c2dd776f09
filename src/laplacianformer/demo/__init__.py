"""The local web page of a classifier: `laplacianformer demo`."""
