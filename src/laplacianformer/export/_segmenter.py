"""A segmenter as ONNX, and how far what was written is from it."""

from collections.abc import Iterator

import torch

from laplacianformer._util.errors import InputError
from laplacianformer.export._check import Difference, Runner, check_finite, relative_difference
from laplacianformer.export._exported import Exported
from laplacianformer.export._trace import least_side
from laplacianformer.model import LaplacianFormer
from laplacianformer.segmentation import Segmenter, SegmenterWeights

# Batch, height and width, in the shortest sides that torch.export takes: whole tokens in every map, and parts of them.
_SHAPES = ((1, 3.0, 4.0), (2, 1.4, 2.7), (1, 5.1, 1.0))


def export_segmenter(loaded: SegmenterWeights) -> Exported:
    """ONNX for every batch, height and width: normalised images (batch, 3, height, width) to logits (batch, classes,
    height, width)."""
    model = _exportable(loaded)
    check_finite(loaded.path, model, 3, 3 * least_side(model), 4 * least_side(model))
    try:
        from laplacianformer.export._onnx_model import onnx_runner, to_onnx
    except ImportError as error:
        raise InputError(f"ONNX needs more packages ({error}): pip install 'laplacianformer[export]'") from None
    file = to_onnx(model, loaded.metadata, outputs=(model.num_classes, "height", "width"))
    return Exported(file, onnx_runner(file))


@torch.inference_mode()
def segmenter_differences(loaded: SegmenterWeights, run: Runner) -> Iterator[Difference]:
    """How far what `run` computes is from the segmenter, for random images of several shapes."""
    generator, least = torch.Generator().manual_seed(0), least_side(_exportable(loaded))
    for batch, rows, columns in _SHAPES:
        images = torch.randn(batch, 3, int(rows * least), int(columns * least), generator=generator)
        yield Difference(tuple(images.shape), relative_difference(run(images), loaded.model(images)))


def _exportable(loaded: SegmenterWeights) -> Segmenter:
    if not isinstance(loaded.model.maps.model, LaplacianFormer):
        backbone = loaded.model.arguments["backbone"]
        raise InputError(f"a segmenter on {backbone} can't be exported: expected a LaplacianFormer")
    return loaded.model
