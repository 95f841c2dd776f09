"""Masks as in COCO files, polygons and run lengths, by faster-coco-eval."""

from typing import Any

import numpy as np

from laplacianformer._util.errors import InputError

Array = np.ndarray[Any, Any]
RunLengths = dict[str, Any]  # size (height, width) and counts


def _library() -> Any:
    """The functions of COCO's mask API."""
    try:
        from faster_coco_eval import mask
    except ImportError:
        raise InputError("detection needs faster-coco-eval: pip install 'laplacianformer[train]'") from None
    return mask


def encode(mask: Array) -> RunLengths:
    """Run lengths of a mask (height, width), ready for JSON."""
    coded = _library().encode(np.asfortranarray(mask, dtype=np.uint8))
    counts = coded["counts"]
    return {"size": list(mask.shape), "counts": counts.decode() if isinstance(counts, bytes) else counts}


def _run_lengths(segmentation: Any, height: int, width: int) -> RunLengths:
    """The run lengths of polygons, of counts as a list, or of counts as text."""
    api = _library()
    if isinstance(segmentation, list):
        return api.merge(api.frPyObjects(segmentation, height, width))
    if isinstance(segmentation["counts"], list):
        return api.frPyObjects(segmentation, height, width)
    return segmentation


def decode(segmentation: Any, height: int, width: int) -> Array:
    """A mask (height, width) of bytes, 0 and 1."""
    return _library().decode(_run_lengths(segmentation, height, width))


def area(segmentation: Any, height: int, width: int) -> float:
    """The number of covered pixels, without a mask in memory."""
    return float(_library().area(_run_lengths(segmentation, height, width)))


def extent(segmentation: Any, height: int, width: int) -> tuple[float, float, float, float]:
    """x0, y0, x1, y1 of the covered pixels; for polygons, of their corners, which costs less."""
    if isinstance(segmentation, list):
        corners = np.concatenate([np.asarray(polygon, dtype=np.float64).reshape(-1, 2) for polygon in segmentation])
        (x0, y0), (x1, y1) = corners.min(0), corners.max(0)
    else:
        x0, y0, w, h = _library().toBbox(_run_lengths(segmentation, height, width))
        x1, y1 = x0 + w, y0 + h
    return float(x0), float(y0), float(x1), float(y1)
