"""The linear layers of an ONNX file in 8-bit integers; the scales of activations are computed at run time."""

import tempfile
from pathlib import Path

import onnx

from laplacianformer.export._onnxruntime import import_onnxruntime

quantization = import_onnxruntime("onnxruntime.quantization")

# Tells onnxruntime that the file needs no preprocessing; without it, it warns that it might.
PREPARED = ("onnx.quant.pre_process", "onnxruntime.quant")


def quantised(file: bytes) -> bytes:
    """The file with int8 weights, one scale per output, in all linear layers of the stages; the head stays as it is.

    Weights use 7 of the 8 bits, so that the sum of two products fits into the 16 bits in which some CPUs add them.
    """
    model = onnx.load_from_string(file)
    del model.graph.value_info[:]  # the quantiser transposes the head's weights and would find their old shape here
    prepared = model.metadata_props.add()
    prepared.key, prepared.value = PREPARED
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        quantization.quantize_dynamic(
            model,
            path,
            op_types_to_quantize=["MatMul"],
            nodes_to_quantize=_linear_layers(model),
            per_channel=True,
            reduce_range=True,
            weight_type=quantization.QuantType.QInt8,
        )
        return path.read_bytes()


def _linear_layers(model: onnx.ModelProto) -> list[str]:
    """Names of the products with a weight matrix: not those with tables or variances, which have an axis of heads."""
    matrices = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2}
    return [node.name for node in model.graph.node if node.op_type == "MatMul" and node.input[1] in matrices]
