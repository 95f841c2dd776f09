"""What the page answers to what is done on it. Plain values in and out: the layout is in `app`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from laplacianformer._util.errors import InputError
from laplacianformer.data import images
from laplacianformer.demo import drawing, looking
from laplacianformer.model import LaplacianFormer
from laplacianformer.weights import Weights

OWN = "the layer itself"
MAPS = (OWN, *looking.WAYS)
ALL_HEADS = "mean of heads"
TOP = 5


@dataclass(frozen=True)
class Looked:
    """A picture that the model has looked at."""

    picture: Image.Image
    image: Tensor
    classes: dict[str, float]
    entries: dict[str, looking.Entry]


class Answers:
    """The answers of one model, which runs on the CPU."""

    def __init__(self, loaded: Weights) -> None:
        if not isinstance(loaded.model, LaplacianFormer):
            held = loaded.metadata["architecture"]
            raise InputError(f"the page shows a LaplacianFormer, and {loaded.path} holds a {held}")
        self.loaded, self.model = loaded, loaded.model
        self.layers = looking.layers(loaded.model)
        self.scale = looking.trained_scale(loaded.model)
        self.examples = drawing.examples()

    def look(self, source: Path | Image.Image) -> Looked:
        """Raises InputError with the reason where the picture can't be read."""
        picture = images.read(source)
        image = images.to_input(self.loaded.input)(picture)
        probabilities, entries = looking.look(self.model, image)
        classes = self.named(probabilities)
        return Looked(
            drawing.as_seen(picture, self.loaded.input), image, classes, {entry.name: entry for entry in entries}
        )

    def look_at_example(self, name: str) -> Looked:
        return self.look(self.examples[name] or drawing.ship())

    def named(self, probabilities: Tensor) -> dict[str, float]:
        if not probabilities.isfinite().all():
            raise InputError(f"{self.loaded.path} gives probabilities that are not finite: its training went wrong")
        return dict(zip(self.loaded.classes, probabilities.tolist(), strict=True))

    def heads(self, layer: str) -> list[str]:
        return [ALL_HEADS, *(f"head {number}" for number in range(1, self.layers[layer].num_heads + 1))]

    @torch.inference_mode()
    def classes_with(self, looked: Looked, scale: float) -> dict[str, float]:
        """The classes with this lambda in every layer."""
        if scale == self.scale:
            return looked.classes
        return self.named(looking.with_scale(self.model, scale)(looked.image[None])[0].softmax(0))

    def marked(self, looked: Looked, layer: str, place: tuple[float, float], landmarks: bool) -> Image.Image:
        """The picture with the query and the landmarks of a layer."""
        entry = looked.entries[layer]
        return drawing.marked(looked.picture, entry.size, entry.token(place), entry.landmarks if landmarks else None)

    def maps(
        self, looked: Looked, layer: str, head: str, place: tuple[float, float], scale: float, wanted: Sequence[str]
    ) -> dict[str, Image.Image]:
        """The wanted ones of `MAPS`, drawn."""
        entry = looked.entries[layer]
        query = entry.token(place)
        found = looking.compared(entry, query, scale) if set(wanted) - {OWN} else {}
        if OWN in wanted:
            found[OWN] = looking.own(entry, query, scale)
        heads = self.heads(layer)
        number = heads.index(head) if head in heads else 0  # another layer may have fewer
        return {
            name: drawing.over(looked.picture, weights[number - 1] if number else weights.mean(0), query)
            for name, weights in found.items()
            if name in wanted
        }

    def times(self, looked: Looked, layer: str) -> tuple[dict[str, float], dict[str, float]]:
        """Milliseconds: of the parts of the model, and of the parts of one layer."""
        return looking.model_times(self.model, looked.image), looking.layer_times(looked.entries[layer])

    def about(self, looked: Looked, layer: str) -> str:
        """The tokens and landmarks of a layer, in words."""
        (rows, columns), landmarks = looked.entries[layer].size, looked.entries[layer].landmarks
        tokens = f"{layer}: {rows} x {columns} tokens"
        if landmarks is None:
            return f"{tokens}, no landmarks"
        if landmarks == (rows, columns):
            return f"{tokens}, each its own landmark: nothing to solve"
        return f"{tokens}, {landmarks[0]} x {landmarks[1]} landmarks, the means of the keys in the cells of the grid"
