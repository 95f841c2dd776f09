"""Classify an image with an exported model: only numpy, Pillow and onnxruntime are needed, not this package.

    laplacianformer export --weights model.safetensors --format onnx model.onnx
    python examples/classify_onnx.py model.onnx photo.png

The file itself states what input it takes and which classes it knows.
"""

import json
import os
import sys
from typing import Any

import numpy as np
from PIL import Image, ImageOps

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read on import
import onnxruntime


def main(model: str, path: str) -> None:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    classes, model_input = json.loads(metadata["classes"]), json.loads(metadata["input"])
    with Image.open(path) as image:
        pixels = prepared(image, model_input)
    (logits,) = session.run(["logits"], {"images": pixels})
    exponentials = np.exp(logits[0] - logits[0].max())
    probabilities = exponentials / exponentials.sum()
    for index in probabilities.argsort()[::-1][:5]:
        print(f"{probabilities[index]:.6f} {classes[index]}")


def prepared(image: Image.Image, model_input: dict[str, Any]) -> np.ndarray:
    """Upright, on white, resized, cropped to the centre, normalised: (1, channels, height, width)."""
    channels, height, width = model_input["size"]
    upright = ImageOps.exif_transpose(image).convert("RGBA")
    flat = Image.new("RGBA", upright.size, "white")
    flat.alpha_composite(upright)
    target = int(height / model_input["crop_pct"]), int(width / model_input["crop_pct"])
    scaled = resized(flat.convert("RGB"), *target, model_input["interpolation"])
    left, top = round((scaled.width - width) / 2), round((scaled.height - height) / 2)
    crop = scaled.crop((left, top, left + width, top + height)).convert("L" if channels == 1 else "RGB")
    pixels = np.asarray(crop, dtype=np.float32).reshape(height, width, channels) / 255
    mean, std = (np.array(model_input[key], dtype=np.float32) for key in ("mean", "std"))
    return ((pixels - mean) / std).transpose(2, 0, 1)[None].astype(np.float32)


def resized(image: Image.Image, height: int, width: int, interpolation: str) -> Image.Image:
    """Just large enough to cover this height and width, with the aspect ratio kept."""
    if image.width * height <= image.height * width:
        size = width, width * image.height // image.width
    else:
        size = height * image.width // image.height, height
    return image.resize(size, Image.Resampling[interpolation.upper()])


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python classify_onnx.py MODEL.onnx IMAGE")
    main(*sys.argv[1:])
