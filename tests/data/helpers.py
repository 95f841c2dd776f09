"""Generated WebDataset shards."""

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image


def encoded(image: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


def noise(seed: int) -> bytes:
    return encoded(Image.fromarray(np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8)))


def shard(path: Path, samples: list[tuple[bytes, int]]) -> None:
    """A tar of images with their labels."""
    with tarfile.open(path, "w") as tar:
        for number, (image, label) in enumerate(samples):
            for ending, content in (("png", image), ("cls", str(label).encode())):
                info = tarfile.TarInfo(f"{path.stem}-{number}.{ending}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
