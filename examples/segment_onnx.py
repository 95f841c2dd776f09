"""Segment an image with an exported model: only numpy, Pillow and onnxruntime are needed, not this package.

    laplacianformer export --weights runs/camvid/model.safetensors --format onnx streets.onnx
    python examples/segment_onnx.py streets.onnx street.jpg labels.png

The file itself states how images are prepared, which classes it knows, and which value and colour stand for each.
"""

import json
import os
import sys
from typing import Any

import numpy as np
from PIL import Image, ImageOps

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read on import
import onnxruntime


def main(model: str, path: str, output: str) -> None:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    classes, prepared = json.loads(metadata["labels"])["classes"], json.loads(metadata["input"])
    with Image.open(path) as image:
        picture = ImageOps.exif_transpose(image).convert("RGB")
    (logits,) = session.run(["logits"], {"images": pixels(picture, prepared)})
    found = resized(logits[0], picture.height, picture.width).argmax(0)
    values = np.array([entry["value"] for entry in classes])
    labels = Image.fromarray(values[found].astype(np.uint8 if values.max() < 256 else np.uint16))
    if labels.mode == "L":
        palette = np.zeros((256, 3), dtype=np.uint8)
        palette[values] = [entry["colour"] for entry in classes]
        labels.putpalette(palette.tobytes())
    labels.save(output)
    covered = np.bincount(found.ravel(), minlength=len(classes)) / found.size
    for index in covered.argsort()[::-1]:
        if covered[index]:
            print(f"{covered[index]:.6f} {classes[index]['name']}")


def pixels(picture: Image.Image, prepared: dict[str, Any]) -> np.ndarray:
    """Resized where the model wants it, and normalised: (1, 3, height, width)."""
    if prepared["short_side"]:
        factor = prepared["short_side"] / min(picture.size)
        size = [max(1, round(factor * length)) for length in picture.size]
        picture = picture.resize(size, Image.Resampling.BILINEAR)
    mean, std = (np.array(prepared[key], dtype=np.float32) for key in ("mean", "std"))
    normalised = (np.asarray(picture, dtype=np.float32) / 255 - mean) / std
    return normalised.transpose(2, 0, 1)[None].astype(np.float32)


def resized(logits: np.ndarray, height: int, width: int) -> np.ndarray:
    """(classes, h, w) to the size of the image, bilinear."""
    if logits.shape[1:] == (height, width):
        return logits
    maps = [Image.fromarray(each).resize((width, height), Image.Resampling.BILINEAR) for each in logits]
    return np.stack([np.asarray(each) for each in maps])


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python segment_onnx.py MODEL.onnx IMAGE LABELS.png")
    main(*sys.argv[1:])
