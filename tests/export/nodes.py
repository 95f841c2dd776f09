"""Files with a single LaplacianAttention node, what goes into them, and what has to come out."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper
from torch import Tensor

from laplacianformer import ops
from laplacianformer.attention._rope import THETA, cell_rotation
from laplacianformer.attention._whitening import resize
from laplacianformer.export import onnx_library

INPUTS = {
    "qkv": TensorProto.FLOAT,
    "size": TensorProto.INT64,
    "variance": TensorProto.FLOAT,
    "gains": TensorProto.FLOAT,
}


@dataclass(frozen=True)
class Case:
    """A layer, and tokens for it."""

    size: tuple[int, ...]
    grid: tuple[int, ...]
    heads: int = 2
    width: int = 8  # of a head
    batch: int = 2
    prefix: int = 0
    rope: bool = True
    optional: tuple[str, ...] = ("variance", "gains")
    numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return self.prefix + math.prod(self.size)

    def attributes(self) -> dict[str, Any]:
        theta = THETA[len(self.grid)] if self.rope else 0.0
        numbers = {"iterations": 6, "scale": 4.0, "eps": 1e-2, "variance_eps": 1e-5} | self.numbers
        return {"heads": self.heads, "prefix": self.prefix, "grid": list(self.grid), "theta": theta, **numbers}

    def node(self, **changes: Any) -> bytes:
        names = [name if name in ("qkv", "size", *self.optional) else "" for name in INPUTS]
        attributes = {name: value for name, value in (self.attributes() | changes).items() if value is not None}
        node = helper.make_node("LaplacianAttention", names, ["out"], domain="laplacianformer", **attributes)
        inputs = [helper.make_tensor_value_info(name, INPUTS[name], None) for name in names if name]
        out = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("laplacianformer", 1)]
        model = helper.make_model(helper.make_graph([node], "one", inputs, [out]), opset_imports=opsets, ir_version=10)
        return model.SerializeToString()

    def inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        generator = torch.Generator().manual_seed(seed)
        landmarks, channels = self.prefix + math.prod(self.grid), self.heads * self.width
        tensors = {
            "qkv": torch.randn(self.batch, self.tokens, 3 * channels, generator=generator),
            "size": torch.tensor(self.size),
            "variance": 0.02 * torch.rand(self.heads, landmarks, generator=generator) + 1e-3,
            "gains": torch.randn(self.heads, generator=generator),
        }
        return {name: tensors[name].numpy() for name in ("qkv", "size", *self.optional)}

    def expected(self, inputs: dict[str, np.ndarray]) -> Tensor:
        """By the definition, in float64."""
        given = {name: torch.from_numpy(array) for name, array in inputs.items()}
        cells = tuple(map(min, self.size, self.grid))
        parts = given["qkv"].double().unflatten(-1, (3, self.heads, self.width)).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in parts)
        variance = None
        if "variance" in given:
            before, on_grid = given["variance"].double().tensor_split([self.prefix], dim=1)
            variance = torch.cat([before, resize(on_grid.unflatten(1, self.grid), cells).flatten(1)], dim=1)
        rotations = [cell_rotation(q, self.size, to, self.prefix) if self.rope else None for to in (self.size, cells)]
        out, _ = ops.laplacian_attention(
            *(q, k, v, self.size, cells, self.attributes()["scale"]),
            gain=given["gains"].double() if "gains" in given else "auto",
            variance=variance,
            prefix=self.prefix,
            rotation=rotations[0],
            cell_rotation=rotations[1],
            iterations=self.attributes()["iterations"],
            backend="reference",
        )
        return out.transpose(1, 2).flatten(2)


def session(file: bytes, threads: int = 1) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.register_custom_ops_library(str(onnx_library()))
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def run(opened: Any, inputs: dict[str, np.ndarray]) -> Tensor:
    """Into memory full of NaN."""
    batch, tokens, channels = inputs["qkv"].shape
    out = onnxruntime.OrtValue.ortvalue_from_numpy(np.full((batch, tokens, channels // 3), np.nan, np.float32))
    binding = opened.io_binding()
    for name, array in inputs.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    binding.bind_ortvalue_output("out", out)
    opened.run_with_iobinding(binding)
    return torch.from_numpy(out.numpy().copy())
