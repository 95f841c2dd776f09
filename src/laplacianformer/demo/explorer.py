"""One model as the page explores it: classes, drawn attention and times of an image. The layout is in `page`."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from laplacianformer._util.errors import InputError
from laplacianformer.data import _images as images
from laplacianformer.demo import examples, layers, maps, overlays, timing
from laplacianformer.inspect._finite import check_outputs
from laplacianformer.model import LaplacianFormer
from laplacianformer.weights import Weights

OWN_MAP = "the layer itself"
MAPS = (OWN_MAP, *maps.COMPARISONS)
ALL_HEADS = "mean of heads"
MOST_PIXELS = 25_000_000  # of an upload: half a gigabyte while it is decoded
Point = tuple[float, float]  # x and y from 0 (left, top) to 1 (right, bottom)


@dataclass(frozen=True)
class Analysis:
    """An image that went through the model."""

    image: Image.Image  # as it is shown
    model_input: Tensor  # (channels, height, width)
    classes: dict[str, float]
    layer_inputs: dict[str, layers.LayerInput]


class Explorer:
    """What the page asks of one model, which runs on the CPU."""

    def __init__(self, loaded: Weights) -> None:
        if not isinstance(loaded.model, LaplacianFormer):
            held = loaded.metadata["architecture"]
            raise InputError(f"the page shows a LaplacianFormer, and {loaded.path} holds a {held}")
        self.loaded, self.model = loaded, loaded.model
        self.layers = layers.shown_layers(loaded.model)
        self.scale = maps.trained_scale(loaded.model)
        self.examples = examples.names()

    def analyse(self, source: Path | Image.Image) -> Analysis:
        """Raises InputError with the reason if the image can't be read."""
        image = images.read(source)
        model_input = images.to_input(self.loaded.input)(image)
        probabilities, inputs = layers.classify(self.model, model_input)
        check_outputs(self.loaded.path, probabilities, self.model, model_input[None])
        shown = overlays.as_seen(image, self.loaded.input)
        return Analysis(shown, model_input, self._by_class(probabilities), {entry.name: entry for entry in inputs})

    def analyse_upload(self, path: Path) -> Analysis:
        """The same for somebody else's file, which may be small and still take gigabytes to decode."""
        check_upload(path)
        return self.analyse(path)

    def analyse_example(self, name: str) -> Analysis:
        return self.analyse(examples.load(name))

    def _by_class(self, probabilities: Tensor) -> dict[str, float]:
        if not probabilities.isfinite().all():  # with another lambda
            raise InputError(f"{self.loaded.path} gives probabilities that are not finite with this lambda")
        return dict(zip(self.loaded.classes, probabilities.tolist(), strict=True))

    def heads(self, layer: str) -> list[str]:
        return [ALL_HEADS, *(f"head {number}" for number in range(1, self.layers[layer].num_heads + 1))]

    @torch.inference_mode()
    def classes_with(self, analysis: Analysis, scale: float) -> dict[str, float]:
        """The classes with this lambda in every layer."""
        if scale == self.scale:
            return analysis.classes
        logits = maps.with_scale(self.model, scale)(analysis.model_input[None])
        return self._by_class(logits[0].softmax(0))

    def marked_image(self, analysis: Analysis, layer: str, point: Point, *, landmarks: bool) -> Image.Image:
        """The image with the query token and the landmarks of a layer."""
        entry = analysis.layer_inputs[layer]
        cells = entry.landmarks if landmarks else None
        return overlays.with_markers(analysis.image, entry.size, entry.token(point), cells)

    def attention_images(
        self, analysis: Analysis, layer: str, head: str, point: Point, scale: float, wanted: Sequence[str]
    ) -> dict[str, Image.Image]:
        """What the token at this point attends to, drawn over the image, for the wanted ones of `MAPS`."""
        entry = analysis.layer_inputs[layer]
        query = entry.token(point)
        found = maps.compared_maps(entry, query, scale) if set(wanted) - {OWN_MAP} else {}
        if OWN_MAP in wanted:
            found[OWN_MAP] = maps.own_map(entry, query, scale)
        heads = self.heads(layer)
        index = heads.index(head) if head in heads else 0  # another layer may have fewer
        return {
            name: overlays.with_attention(analysis.image, weights[index - 1] if index else weights.mean(0), query)
            for name, weights in found.items()
            if name in wanted
        }

    def times(self, analysis: Analysis, layer: str) -> tuple[dict[str, float], dict[str, float]]:
        """Milliseconds of the parts of the model, and of the parts of one layer."""
        return timing.model_times(self.model, analysis.model_input), timing.layer_times(analysis.layer_inputs[layer])

    def describe_layer(self, analysis: Analysis, layer: str) -> str:
        """The tokens and landmarks of a layer, in words."""
        (rows, columns), landmarks = analysis.layer_inputs[layer].size, analysis.layer_inputs[layer].landmarks
        tokens = f"{layer}: {rows} x {columns} tokens"
        if landmarks is None:
            return f"{tokens}, no landmarks"
        if analysis.layer_inputs[layer].is_exact:
            return f"{tokens}, each its own landmark: nothing to solve"
        return f"{tokens}, {landmarks[0]} x {landmarks[1]} landmarks, the means of the keys in the cells of the grid"


def check_upload(path: Path) -> None:
    """Refuse an image whose header states more pixels than anyone should wait for."""
    width, height = _stated_size(path)
    if width * height > MOST_PIXELS:
        raise InputError(f"{width} x {height} pixels, more than {MOST_PIXELS / 1e6:.0f} million: make it smaller first")


def _stated_size(path: Path) -> tuple[int, int]:
    """What the header of an image says; (0, 0) for what can't be opened, which is explained where it is read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of many pixels: they are counted here
            with Image.open(path) as image:
                return image.size
    except Exception:
        return 0, 0
