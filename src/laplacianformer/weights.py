"""Weights as one safetensors file, with what is needed to use them in its metadata."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors.torch import save as as_bytes
from torch import nn

from laplacianformer.files import replacing


def save_weights(path: Path, model: nn.Module, *, classes: Sequence[str], metadata: Mapping[str, str]) -> None:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with replacing(path) as file:
        file.write(as_bytes(tensors, {**metadata, "classes": json.dumps(list(classes))}))
