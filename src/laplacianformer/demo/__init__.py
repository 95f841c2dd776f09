"""The local web page of a classifier or a segmenter, `laplacianformer demo`: see `laplacianformer.demo.server`."""

__all__: list[str] = []
