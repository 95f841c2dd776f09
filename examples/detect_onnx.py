"""Find the objects in an image with an exported model: only numpy, Pillow and onnxruntime are needed, not this package.

    laplacianformer export --weights runs/shapes/model.safetensors --format onnx shapes.onnx
    python examples/detect_onnx.py shapes.onnx photo.jpg found.png

Everything else is in the file: it resizes and normalises the image, suppresses boxes that overlap, and names classes.
"""

import json
import os
import sys

import numpy as np
from PIL import Image, ImageDraw, ImageOps

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read on import
import onnxruntime


def main(model: str, path: str, output: str, least_score: float = 0.5) -> None:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
    with Image.open(path) as image:
        picture = ImageOps.exif_transpose(image).convert("RGB")
    pixels = np.asarray(picture, dtype=np.float32).transpose(2, 0, 1) / 255
    names = [each.name for each in session.get_outputs()]
    found = dict(zip(names, session.run(names, {"image": pixels}), strict=True))
    chosen = found["scores"] >= least_score
    found = {name: values[chosen] for name, values in found.items()}
    for mask in found.get("masks", ()):
        tint = Image.new("RGB", picture.size, "orange")
        picture.paste(tint, mask=Image.fromarray(mask.astype(np.uint8) * 96))
    drawing = ImageDraw.Draw(picture)
    for box, label, score in zip(found["boxes"], found["labels"], found["scores"], strict=True):
        drawing.rectangle(box.tolist(), outline="orange", width=2)
        drawing.text(box[:2].tolist(), classes[label - 1], fill="black", stroke_fill="white", stroke_width=1)
        print(f"{score:.4f} {classes[label - 1]} {' '.join(f'{value:.1f}' for value in box)}")
    picture.save(output)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python detect_onnx.py MODEL.onnx IMAGE PICTURE.png")
    main(*sys.argv[1:])
