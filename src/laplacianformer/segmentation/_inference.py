"""Classes of pixels in images from files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image
from torchvision.transforms.v2.functional import pil_to_tensor

from laplacianformer._util.devices import chosen_device
from laplacianformer._util.errors import about
from laplacianformer.data import _images as images
from laplacianformer.segmentation._classes import Preparation, find_classes
from laplacianformer.segmentation._labels import Array
from laplacianformer.segmentation._weights import SegmenterWeights


@dataclass(frozen=True)
class Segmentation:
    """The classes of one image (height, width), by index; or the reason why there is no image."""

    path: Path
    image: Image.Image | None = None
    classes: Array | None = None
    failure: str = ""


def segment(
    loaded: SegmenterWeights, names: Sequence[str], *, window: int | None = None, device: str | None = None
) -> Iterator[Segmentation]:
    """The class of every pixel of each file, in the order of `names` (files, folders, patterns). Memory: one image.

    Args:
        window: side in pixels of the windows that images are seen in, 0 for the whole image; None: as the weights say.
        device: such as "cuda:1"; None takes the accelerator if there is one, or the CPU.
    """
    chosen, preparation = chosen_device(device), windowed(loaded.preparation, window)
    model = loaded.model.to(chosen)
    for path, image, failure in images.read_each(names):
        if image is None:
            yield Segmentation(path, failure=failure)
            continue
        try:
            with about(loaded.path):
                found = find_classes(model, pil_to_tensor(image).to(chosen), preparation)
        except RuntimeError as error:  # it needs more memory than there is
            yield Segmentation(path, failure=f"the segmenter can't take its {image.width} x {image.height}: {error}")
            continue
        yield Segmentation(path, image, found.cpu().numpy())


def windowed(preparation: Preparation, window: int | None) -> Preparation:
    """With windows of this side, 0 for none; None leaves it as it is."""
    return preparation if window is None else replace(preparation, window=window or None, window_stride=None)
