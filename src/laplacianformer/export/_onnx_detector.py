"""A detector as one ONNX file: a picture of any size in, the objects in pixels of it out."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir
import torch
from onnx_ir.passes import common as passes
from onnxscript import DOUBLE, FLOAT, INT64, script
from onnxscript import opset18 as op
from torch import Tensor

from laplacianformer.export._detector_graph import GRAPHS
from laplacianformer.export._onnx_functions import DOMAIN, FUNCTIONS
from laplacianformer.export._onnx_model import TRANSLATIONS, Translations, onnx_session, tidied, translated
from laplacianformer.export._trace import trace_detector

MOST_BOXES = 2**31 - 1
LEAST_NUMBER = float(np.finfo(np.float32).min)

_SHAPES: dict[str | None, list[int | str]] = {  # of what the file gives; the shapes of what heads give aren't declared
    "boxes": ["objects", 4],
    "labels": ["objects"],
    "scores": ["objects"],
    "masks": ["objects", "height", "width"],
}
_UNUSED = onnx_ir.passes.Sequential(passes.RemoveUnusedNodesPass(), passes.RemoveUnusedOpsetsPass())


def detector_to_onnx(model: Any, metadata: Mapping[str, str]) -> tuple[bytes, Callable[[Tensor], dict[str, Tensor]]]:
    """The bytes of the file: `image` (3, height, width) from 0 to 1 to the objects in it, with the metadata as
    properties. And a function that runs this file, and beside it one that also gives what the heads gave."""
    graph = GRAPHS[model.detector](model)
    program = trace_detector(graph, model.transform.size_divisible)
    names = [*graph.objects, *graph.heads]
    written = translated(program, DETECTION, ["prepared", "size", "rows", "columns"], names)
    _prepare_inside(written, model.transform)
    written = tidied(written, (Prepare, *FUNCTIONS))
    for value in written.graph.outputs:
        value.shape = onnx_ir.Shape(_SHAPES[value.name]) if value.name in _SHAPES else None
    written.metadata_props.update(metadata)
    with_heads = onnx_session(onnx_ir.to_proto(written).SerializeToString())
    del written.graph.outputs[len(graph.objects) :]
    written = _UNUSED(written).model
    file = onnx_ir.to_proto(written).SerializeToString()
    kept = onnx_session(file)

    def run(image: Tensor) -> dict[str, Tensor]:
        given = {"image": image.numpy()}
        values = [*kept.run(graph.objects, given), *with_heads.run(graph.heads, given)]
        return {name: torch.from_numpy(value) for name, value in zip(names, values, strict=True)}

    return file, run


def _prepare_inside(model: onnx_ir.Model, transform: Any) -> None:
    """Let the graph begin with the picture itself."""
    graph = model.graph
    image = onnx_ir.Value(
        name="image", shape=onnx_ir.Shape([3, "height", "width"]), type=onnx_ir.TensorType(onnx_ir.DataType.FLOAT)
    )
    numbers = {
        "mean": np.array(transform.image_mean, np.float32),
        "std": np.array(transform.image_std, np.float32),
        "sides": np.array([transform.min_size[-1], transform.max_size], np.float64),
        "multiple": np.array([transform.size_divisible], np.int64),
    }
    values = []
    for name, numbers_of in numbers.items():
        value = onnx_ir.Value(name=name, const_value=onnx_ir.tensor(numbers_of, name=name))
        graph.register_initializer(value)
        values.append(value)
    node = onnx_ir.Node(DOMAIN.domain, Prepare.name, [image, *values], num_outputs=len(graph.inputs))
    graph.insert_before(graph[0], node)
    onnx_ir.convenience.replace_all_uses_with(list(graph.inputs), list(node.outputs))
    graph.inputs[:] = [image]
    model.opset_imports[DOMAIN.domain] = DOMAIN.version


@script(DOMAIN, default_opset=op)
def Prepare(image: FLOAT, mean: FLOAT, std: FLOAT, sides: DOUBLE, multiple: INT64):  # type: ignore[no-untyped-def]
    """Normalised, resized so that the shorter and the longer side are at most `sides`, and padded with zeros to a
    multiple: (1, 3, H, W). Then height and width without the padding, and the numbers of rows and columns of the
    image itself."""
    along = op.Constant(value_ints=[1, 2])
    normalised = (image - op.Unsqueeze(mean, along)) / op.Unsqueeze(std, along)
    original = op.Shape(image, start=1)
    exact = op.Cast(original, to=11)
    shorter = op.ReduceMin(exact, keepdims=1)
    longer = op.ReduceMax(exact, keepdims=1)
    factor = op.ReduceMin(sides / op.Concat(shorter, longer, axis=0), keepdims=1)
    size = op.Cast(op.Floor(exact * factor), to=7)
    whole = op.Concat(op.Constant(value_ints=[1, 3]), size, axis=0)
    resized = op.Resize(op.Unsqueeze(normalised, op.Constant(value_ints=[0])), None, None, whole, mode="linear")
    missing = (size + multiple - op.Constant(value_ints=[1])) / multiple * multiple - size
    padded = op.Pad(resized, op.Concat(op.Constant(value_ints=[0, 0, 0, 0, 0, 0]), missing, axis=0))
    zero = op.Constant(value_int=0)
    one = op.Constant(value_int=1)
    rows = op.Cast(op.Range(zero, op.Gather(original, zero), one), to=1)
    columns = op.Cast(op.Range(zero, op.Gather(original, one), one), to=1)
    return padded, size, rows, columns


def _suppress(boxes: Any, scores: Any, groups: Any, counts: Any, count: int, overlap: float) -> Any:
    first, last = op.Constant(value_ints=[0]), op.Constant(value_ints=[1])
    candidates = op.Squeeze(op.NonZero(counts), first)
    boxes, scores, groups = (op.Gather(each, candidates) for each in (boxes, scores, groups))
    names = op.Unsqueeze(op.Constant(value_ints=list(range(count))), last)
    of_group = op.Where(op.Equal(groups, names), scores, op.Constant(value_float=float("-inf")))
    kept = op.NonMaxSuppression(
        op.Unsqueeze(boxes, first),
        op.Unsqueeze(of_group, first),
        op.Constant(value_ints=[MOST_BOXES]),
        op.Constant(value_floats=[overlap]),
        op.Constant(value_floats=[LEAST_NUMBER]),  # all but those of other groups
    )
    kept = op.Gather(kept, op.Constant(value_int=2), axis=1)
    _, order = op.TopK(op.Gather(scores, kept), op.Shape(kept))
    return op.Gather(candidates, op.Gather(kept, order))


def _roi_align(values: Any, rois: Any, scale: float, height: int, width: int, samples: int, aligned: bool) -> Any:
    batch = op.Cast(op.Gather(rois, op.Constant(value_int=0), axis=1), to=7)
    boxes = op.Gather(rois, op.Constant(value_ints=[1, 2, 3, 4]), axis=1)
    return op.RoiAlign(
        values,
        boxes,
        batch,
        coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
        output_height=height,
        output_width=width,
        sampling_ratio=max(0, samples),
        spatial_scale=scale,
    )


DETECTION: Translations = {
    **TRANSLATIONS,
    torch.ops.laplacianformer_export.suppress.default: _suppress,
    torch.ops.torchvision.roi_align.default: _roi_align,
}
