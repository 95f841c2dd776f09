"""A model as one ONNX file for every batch, and every size that the model takes."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import onnx_ir
import torch
from onnx_ir.passes import common as passes
from onnxscript import OnnxFunction
from onnxscript import opset18 as op
from onnxscript.optimizer import optimize_ir
from torch import Tensor
from torch.export import ExportedProgram

from laplacianformer.export._onnx_functions import DOMAIN, FUNCTIONS, LaplacianKernel, LaplacianMatmul
from laplacianformer.export._onnx_kernels import attention_as_nodes
from laplacianformer.export._onnxruntime import import_onnxruntime
from laplacianformer.export._trace import channels, check_operators, trace
from laplacianformer.ops.newton_schulz.reference import IDENTITY_FACTOR

onnxruntime = import_onnxruntime()

OPSET = 18
FLOAT = 1  # in ONNX's numbering of types
MOST_FOLDED = 1 << 30  # transposed weights of any size

Translations = Mapping[Any, Callable[..., Any]]  # of torch's operators


def to_onnx(
    model: Any,
    metadata: Mapping[str, str],
    size: tuple[int, int] | None = None,
    outputs: Sequence[int | str] | None = None,
    kernels: bool = False,
) -> bytes:
    """The bytes of the file: `images` (batch, channels, height, width) to `logits`, with the metadata as properties.

    Args:
        size: the only height and width; None for any.
        outputs: the shape of the logits of one image; None: one number per class.
        kernels: the attention of each layer as one node, for `onnx_library`.
    """
    with attention_as_nodes(model) if kernels else nullcontext():
        program = trace(model, size)
    written = tidied(translated(program, TRANSLATIONS, ["images"], ["logits"]))
    written.graph.inputs[0].shape = onnx_ir.Shape(["batch", channels(model), *(size or ("height", "width"))])
    written.graph.outputs[0].shape = onnx_ir.Shape(["batch", *(outputs or [model.num_classes])])
    written.metadata_props.update(metadata)
    return onnx_ir.to_proto(written).SerializeToString()


def translated(
    program: ExportedProgram, table: Translations, inputs: Sequence[str], outputs: Sequence[str]
) -> onnx_ir.Model:
    """The graph of a model in operators and functions of ONNX."""
    check_operators(program, table)
    exported = torch.onnx.export(
        program,
        dynamo=True,
        custom_translation_table=dict(table),
        input_names=inputs,
        output_names=outputs,
        opset_version=OPSET,
        optimize=False,
        verbose=False,
    )
    assert exported is not None
    return exported.model


def tidied(model: onnx_ir.Model, functions: Sequence[OnnxFunction] = FUNCTIONS) -> onnx_ir.Model:
    """Constants folded, functions inlined, and no trace of the source code that the graph came from."""
    # Before functions are inlined: nothing in them can be folded, and they would take most of the time.
    optimize_ir(
        model,
        num_iterations=1,
        onnx_shape_inference=False,
        inline=False,
        input_size_limit=MOST_FOLDED,
        output_size_limit=MOST_FOLDED,
    )
    for function in functions:
        inlined = onnx_ir.from_proto(function.to_function_proto())
        model.functions[inlined.identifier()] = inlined
    tidy = onnx_ir.passes.Sequential(
        passes.InlinePass(),
        passes.RemoveUnusedFunctionsPass(),
        passes.RemoveUnusedOpsetsPass(),
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.LiftSubgraphInitializersToMainGraphPass(),
        passes.DeduplicateInitializersPass(),
        passes.CommonSubexpressionEliminationPass(),
        passes.RemoveUnusedNodesPass(),
        passes.ClearMetadataAndDocStringPass(),
        passes.NameFixPass(),
    )
    model = tidy(model).model
    for node in model.graph.all_nodes():
        for value in node.outputs:
            value.shape = _known_shape(value) if node.domain == DOMAIN.domain else None
    return model


def _known_shape(value: onnx_ir.Value) -> onnx_ir.Shape | None:
    """The lengths that are numbers. Others are symbols without a meaning outside; runtimes infer them, and all shapes
    but those of operators that they don't know."""
    if value.shape is None:
        return None
    return onnx_ir.Shape([length if isinstance(length, int) else None for length in value.shape])


def onnx_runner(file: bytes, library: Path | None = None) -> Callable[[Tensor], Tensor]:
    """The file in onnxruntime, as a function of tensors. library: of the operators that onnxruntime lacks."""
    session = onnx_session(file, library)
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def onnx_session(file: bytes, library: Path | None = None) -> Any:
    """The file in onnxruntime on the CPU, with as many threads as torch has."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors only: warnings are about what it could not optimise
    # Waiting threads give up their core, which others often need; on an idle machine this costs no time.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if library is not None:
        options.register_custom_ops_library(str(library))
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


# ---- translations of operators that ONNX lacks, or has in a slow form; arguments as in ops/*/op.py ----


def _kernel(x: Any, y: Any, cos: Any, sin: Any, scale: float, backend: str) -> Any:
    return LaplacianKernel(x, y, scale=scale)


def _matmul(x: Any, y: Any, values: Any, cos: Any, sin: Any, scale: float, backend: str) -> Any:
    return LaplacianMatmul(x, y, values, scale=scale)


def _newton_schulz(w: Any, iterations: int, eps: float, start: str, gradient: str, backend: str) -> Any:
    size = op.Shape(w, start=-1)
    identity = op.EyeLike(op.ConstantOfShape(op.Concat(size, size, axis=0)), dtype=FLOAT)
    a = op.Add(w, op.Mul(identity, _number(eps)))
    if start == "identity":
        x = op.Div(op.Mul(identity, _number(IDENTITY_FACTOR)), _largest_sum(a, along=-1))
    else:
        x = op.Div(op.Transpose(a, perm=[0, 1, 3, 2]), op.Mul(_largest_sum(a, along=-1), _largest_sum(a, along=-2)))
    for _ in range(iterations):
        x = op.Sub(op.Mul(x, _number(2.0)), op.MatMul(x, op.MatMul(a, x)))
    return x


def _largest_sum(a: Any, along: int) -> Any:
    sums = op.ReduceSum(op.Abs(a), op.Constant(value_ints=[along]), keepdims=1)
    return op.ReduceMax(sums, op.Constant(value_ints=[-3 - along]), keepdims=1)


def _gelu(x: Any, approximate: str = "none") -> Any:
    """In the order in which onnxruntime recognises it and computes it in one pass."""
    twice_cdf = op.Add(op.Erf(op.Div(x, _number(math.sqrt(2)))), _number(1.0))
    return op.Mul(op.Mul(x, twice_cdf), _number(0.5))


def _adaptive_average(x: Any, output_size: Sequence[int]) -> Any:
    """Means over cells that may overlap by a row or a column, as a product with a matrix along each axis: ONNX has none
    for lengths that are known at run time only."""
    rows, columns = (_cells(x, axis, count) for axis, count in zip((2, 3), output_size, strict=True))
    return op.MatMul(rows, op.MatMul(x, op.Transpose(columns, perm=[1, 0])))


def _cells(x: Any, axis: int, count: int) -> Any:
    """(count, length): the weights of the tokens along an axis in the mean of each cell."""
    length = op.Shape(x, start=axis, end=axis + 1)
    cell, one = op.Constant(value_ints=list(range(count))), op.Constant(value_ints=[1])
    first = op.Div(op.Mul(cell, length), op.Constant(value_ints=[count]))
    reach = op.Add(op.Mul(op.Add(cell, one), length), op.Constant(value_ints=[count - 1]))
    end = op.Div(reach, op.Constant(value_ints=[count]))
    position = op.Range(op.Constant(value_int=0), op.Squeeze(length), op.Constant(value_int=1))
    first, end = (op.Unsqueeze(each, one) for each in (first, end))
    inside = op.And(op.GreaterOrEqual(position, first), op.Less(position, end))
    return op.Div(op.Cast(inside, to=FLOAT), op.Cast(op.Sub(end, first), to=FLOAT))


def _number(value: float) -> Any:
    return op.Constant(value_float=value)


TRANSLATIONS: Translations = {
    torch.ops.laplacianformer.laplacian_kernel.default: _kernel,
    torch.ops.laplacianformer.laplacian_matmul.default: _matmul,
    torch.ops.laplacianformer.newton_schulz.default: _newton_schulz,
    torch.ops.aten.gelu.default: _gelu,
    torch.ops.aten.adaptive_avg_pool2d.default: _adaptive_average,
}
