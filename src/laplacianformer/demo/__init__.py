"""The local web page of a classifier, `laplacianformer demo`: see `laplacianformer.demo.server`."""

__all__: list[str] = []
