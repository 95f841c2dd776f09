"""The linear layers of an ONNX file in 8-bit integers, with scales that are found as it runs."""

import tempfile
from pathlib import Path

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic

# By which onnxruntime knows that a file needs no preparation; otherwise it says that it might.
PREPARED = ("onnx.quant.pre_process", "onnxruntime.quant")


def quantised(file: bytes) -> bytes:
    """The file with int8 weights, a scale for each output, in all linear layers of the stages; the head stays as it is.

    Weights take 7 of the 8 bits: sums of two products then fit where a CPU adds them in 16 bits.
    """
    model = onnx.load_from_string(file)
    del model.graph.value_info[:]  # the quantiser transposes the head's weights and would find their old shape here
    prepared = model.metadata_props.add()
    prepared.key, prepared.value = PREPARED
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        quantize_dynamic(
            model,
            path,
            op_types_to_quantize=["MatMul"],
            nodes_to_quantize=_linear_layers(model),
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )
        return path.read_bytes()


def _linear_layers(model: onnx.ModelProto) -> list[str]:
    """Names of the products with a matrix of weights: not those of tables, or of variances, which have a head axis."""
    matrices = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2}
    return [node.name for node in model.graph.node if node.op_type == "MatMul" and node.input[1] in matrices]
