"""One segmenter as the page shows it: the classes of the pixels of an image. The layout is in `segmentation_page`."""

from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from torchvision.transforms.v2.functional import pil_to_tensor

from laplacianformer._util.errors import about
from laplacianformer.data import _images as images
from laplacianformer.demo import examples
from laplacianformer.demo.explorer import check_upload
from laplacianformer.segmentation import SegmenterWeights, find_classes, overlay, with_legend
from laplacianformer.segmentation._labels import Array
from laplacianformer.segmentation._pictures import OPACITY, fractions

MOST_SIDE = 1024  # pixels: larger images are made smaller, so that nobody waits for a minute


@dataclass(frozen=True)
class Painted:
    """An image and the indices of the classes of its pixels."""

    image: Image.Image
    classes: Array
    covered: dict[str, float]  # fraction of the image by class


class Painter:
    """What the page asks of one segmenter, which runs on the CPU."""

    def __init__(self, loaded: SegmenterWeights) -> None:
        self.loaded, self.examples = loaded, examples.names()

    def paint(self, source: Path | Image.Image) -> Painted:
        """Raises InputError with the reason if the image can't be read."""
        image = images.read(source)
        image.thumbnail((MOST_SIDE, MOST_SIDE))
        with about(self.loaded.path):
            found = find_classes(self.loaded.model, pil_to_tensor(image), self.loaded.preparation).numpy()
        return Painted(image, found, fractions(found, self.loaded.labels))

    def paint_upload(self, path: Path) -> Painted:
        """The same for somebody else's file."""
        check_upload(path)
        return self.paint(path)

    def paint_example(self, name: str) -> Painted:
        return self.paint(examples.load(name))

    def drawn(self, painted: Painted, opacity: float = OPACITY) -> Image.Image:
        """The colours of the classes over the image, and a legend."""
        labels = self.loaded.labels
        return with_legend(overlay(painted.image, painted.classes, labels, opacity), painted.covered, labels)
