"""Say what is in a picture with an exported model: numpy, Pillow and onnxruntime, and nothing of this package.

    laplacianformer export --weights model.safetensors --format onnx model.onnx
    python examples/classify_onnx.py model.onnx photo.png

The file says by itself what it takes and which classes it knows.
"""

import json
import sys
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def main(model: str, picture: str) -> None:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    said = session.get_modelmeta().custom_metadata_map
    classes, taken = json.loads(said["classes"]), json.loads(said["input"])
    with Image.open(picture) as image:
        pixels = prepared(image, taken)
    (logits,) = session.run(["logits"], {"images": pixels})
    exponentials = np.exp(logits[0] - logits[0].max())
    probabilities = exponentials / exponentials.sum()
    for index in probabilities.argsort()[::-1][:5]:
        print(f"{probabilities[index]:.6f} {classes[index]}")


def prepared(image: Image.Image, taken: dict[str, Any]) -> np.ndarray:
    """Upright, on white, the shorter side scaled, the middle cut out, normalised: (1, channels, height, width)."""
    channels, height, width = taken["size"]
    upright = ImageOps.exif_transpose(image).convert("RGBA")
    flat = Image.new("RGBA", upright.size, "white")
    flat.alpha_composite(upright)
    scaled = resized(flat.convert("RGB"), int(height / taken["crop_pct"]), int(width / taken["crop_pct"]), taken)
    left, top = round((scaled.width - width) / 2), round((scaled.height - height) / 2)
    cut = scaled.crop((left, top, left + width, top + height)).convert("L" if channels == 1 else "RGB")
    pixels = np.asarray(cut, dtype=np.float32).reshape(height, width, channels) / 255
    mean, std = (np.array(taken[key], dtype=np.float32) for key in ("mean", "std"))
    return ((pixels - mean) / std).transpose(2, 0, 1)[None].astype(np.float32)


def resized(image: Image.Image, height: int, width: int, taken: dict[str, Any]) -> Image.Image:
    """Just large enough to cover this height and width, in its own proportions."""
    if image.width * height <= image.height * width:
        size = width, width * image.height // image.width
    else:
        size = height * image.width // image.height, height
    return image.resize(size, Image.Resampling[taken["interpolation"].upper()])


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python classify_onnx.py MODEL.onnx PICTURE")
    main(*sys.argv[1:])
