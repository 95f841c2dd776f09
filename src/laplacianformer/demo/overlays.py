"""What is drawn on the image of the page: the query token, landmarks, and attention."""

from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from laplacianformer import plots
from laplacianformer.data import _images as images
from laplacianformer.ops._pooling import Size

SIDE = 448  # pixels of a drawn image, about
BAR = 56  # pixels of the colour bar below a map


def as_seen(image: Image.Image, model_input: dict[str, Any]) -> Image.Image:
    """The part of an image that the model sees, at a higher resolution than it sees it."""
    channels, height, width = model_input["size"]
    times = max(1, round(SIDE / max(height, width)))
    larger = {**model_input, "size": (channels, times * height, times * width)}
    pixels = images.to_picture(images.to_input(larger)(image), larger)
    return Image.fromarray((255 * pixels).round().astype(np.uint8))


def with_markers(image: Image.Image, size: Size, query: Size, landmarks: Size | None) -> Image.Image:
    """The image with a ring around the query token and, if a grid of landmarks is given, its cells."""
    canvas = image.copy()
    draw = ImageDraw.Draw(canvas, "RGBA")
    if landmarks is not None:
        rows, columns = landmarks
        for line in range(1, rows):
            _line(draw, (0, canvas.height * line / rows), (canvas.width, canvas.height * line / rows))
        for line in range(1, columns):
            _line(draw, (canvas.width * line / columns, 0), (canvas.width * line / columns, canvas.height))
    _ring(draw, canvas.size, size, query)
    return canvas


def with_attention(image: Image.Image, weights_hw: Tensor, query: Size) -> Image.Image:
    """Attention weights over the image in grey, in the colours of `predict --attention`, with a colour bar below.

    The colour bar is relative to uniform attention: 1 where a token counts as much as if all counted the same.
    """
    relative = weights_hw.double().numpy() * weights_hw.numel()
    colours = plots.attention_colours(relative.ravel())
    coloured = Image.fromarray(colours.to_rgba(relative, bytes=True)).convert("RGB")
    grey = Image.fromarray((0.3 * 255 + 0.7 * np.asarray(image.convert("L"))).astype(np.uint8)).convert("RGB")
    canvas = Image.blend(grey, coloured.resize(image.size, Image.Resampling.NEAREST), 0.75)
    _ring(ImageDraw.Draw(canvas, "RGBA"), canvas.size, relative.shape, query)
    return _with_colour_bar(canvas, colours)


def _with_colour_bar(image: Image.Image, colours: Any) -> Image.Image:
    """Below the image: the colours from the lowest to the highest value, and both as numbers."""
    canvas = Image.new("RGB", (image.width, image.height + BAR), "white")
    canvas.paste(image)
    low, high = colours.get_clim()
    strip = colours.to_rgba(np.linspace(low, high, image.width)[None], bytes=True)
    canvas.paste(Image.fromarray(strip).convert("RGB").resize((image.width, BAR // 3)), (0, image.height + 4))
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(size=BAR // 2)
    low = 0 if abs(low) < high / 100 else low
    for text, x, anchor in ((f"{low:.2g}", 2, "ld"), (f"{high:.2g} x", image.width - 2, "rd")):
        draw.text((x, canvas.height), text, fill="black", font=font, anchor=anchor)
    return canvas


def _line(draw: ImageDraw.ImageDraw, start: tuple[float, float], end: tuple[float, float]) -> None:
    """White with dark edges: visible on any image."""
    draw.line((start, end), fill=(0, 0, 0, 90), width=4)
    draw.line((start, end), fill=(255, 255, 255, 220), width=2)


def _ring(draw: ImageDraw.ImageDraw, pixels: tuple[int, int], size: Size, query: Size) -> None:
    x, y = (query[1] + 0.5) * pixels[0] / size[1], (query[0] + 0.5) * pixels[1] / size[0]
    for radius, width, colour in ((13, 7, (0, 0, 0, 255)), (11, 3, (255, 255, 255, 255))):
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), outline=colour, width=width)
