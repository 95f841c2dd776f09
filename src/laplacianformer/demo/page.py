"""The layout of the page and its events. Needs gradio; all computation is in `explorer`."""

import html
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from laplacianformer._util.errors import InputError
from laplacianformer._util.text import printable
from laplacianformer.attention import LaplacianAttention
from laplacianformer.demo.explorer import ALL_HEADS, MAPS, Analysis, Explorer, Point
from laplacianformer.weights._description import origin

CENTRE = (0.5, 0.5)
TOP = 5  # classes that are shown
MOST_BYTES = 20 * 2**20  # of an upload
# System fonts: nothing is downloaded.
THEME = gr.themes.Base(primary_hue="blue", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
STYLE = """
.gradio-container { max-width: 1180px !important; margin: auto; }
#title h1 { margin-bottom: 0; }
#image img { cursor: crosshair; }
#trained dl *, #changed dl * { font-family: var(--font) !important; font-size: 14px; }
#trained dt, #changed dt { overflow-wrap: anywhere; }
#trained dd, #changed dd { white-space: nowrap; }
.times { width: 100%; border-collapse: collapse; font-size: 0.95em; border: none; }
.times tr { border: none; }
.times caption { text-align: left; font-weight: 600; padding: 4px 0; }
.times td { padding: 2px 8px 2px 0; white-space: nowrap; border: none; }
.times td:nth-child(2) { text-align: right; font-variant-numeric: tabular-nums; }
.times td:last-child { width: 55%; padding-right: 0; }
.times div { height: 10px; background: #0072B2; border-radius: 2px; min-width: 1px; }
"""


@dataclass(frozen=True)
class Components:
    """What is on the page, and what each visit remembers: the analysis of its image, and the point that was clicked."""

    analysis: Any
    point: Any
    image: Any
    about: Any
    upload: Any
    buttons: list[Any]
    message: Any
    trained: Any
    changed: Any
    layer: Any
    head: Any
    scale: Any
    wanted: Any
    landmarks: Any
    maps: list[Any]
    times: list[Any]


def build(explorer: Explorer) -> Any:
    """The page, not yet served."""
    with gr.Blocks(title="LaplacianFormer", analytics_enabled=False, delete_cache=(300, 900)) as page:
        gr.Markdown(_heading(explorer), elem_id="title")
        above, controls, below = _above(explorer), _controls(explorer), _below(explorer)
        _wire(page, Components(gr.State(), gr.State(CENTRE), **above, **controls, **below), explorer)
    return page


# ---- layout ----


def _above(explorer: Explorer) -> dict[str, Any]:
    """The image, and beside it the upload, the examples and the classes."""
    with gr.Row():
        with gr.Column(scale=5, min_width=300):
            image = gr.Image(
                label="Click to see what a token attends to",
                interactive=False,
                buttons=[],
                format="png",
                height="min(400px, 86vw)",
                elem_id="image",
            )
            landmarks = gr.Checkbox(True, label="Landmarks on the image", container=False, elem_id="landmarks")
            about = gr.Markdown()
        with gr.Column(scale=4, min_width=300):
            upload = gr.File(label="An image, up to 20 MB", height=130, elem_id="upload")
            with gr.Row():
                buttons = [gr.Button(name, size="sm", min_width=80) for name in explorer.examples]
            message = gr.Markdown(elem_id="message")
            with gr.Row():
                trained, changed = (
                    gr.Label(
                        label=label,
                        num_top_classes=TOP,
                        show_heading=False,
                        min_width=150,
                        visible=visible,
                        elem_id=name,
                    )
                    for name, label, visible in (
                        ("trained", "Classes as trained", True),
                        ("changed", "Classes with this λ", explorer.scale is not None),
                    )
                )
    found = {"image": image, "about": about, "upload": upload, "buttons": buttons, "message": message}
    return {**found, "landmarks": landmarks, "trained": trained, "changed": changed}


def _controls(explorer: Explorer) -> dict[str, Any]:
    first, scale = next(iter(explorer.layers)), explorer.scale or 4.0
    with gr.Row():
        layer = gr.Dropdown(list(explorer.layers), value=first, label="Layer", min_width=250, elem_id="layer")
        head = gr.Dropdown(explorer.heads(first), value=ALL_HEADS, label="Head", min_width=250, elem_id="head")
        slider = gr.Slider(
            min(0.25, scale),
            max(16.0, 4 * scale),
            value=scale,
            step=0.25,
            label=f"λ{_trained_at(explorer)}",
            min_width=280,
            elem_id="lambda",
        )
    wanted = gr.CheckboxGroup(list(MAPS), value=list(MAPS), label="Side by side", elem_id="wanted")
    return {"layer": layer, "head": head, "scale": slider, "wanted": wanted}


def _below(explorer: Explorer) -> dict[str, Any]:
    """The attention maps, what they are, and where the time goes."""
    with gr.Row(elem_id="maps"):
        maps = [
            gr.Image(label=name, interactive=False, buttons=["fullscreen"], format="png", min_width=150)
            for name in MAPS
        ]
    gr.Markdown(_explanation(explorer))
    times = []
    with gr.Row(elem_id="times"):
        for _ in range(2):
            with gr.Column(min_width=300):
                times.append(gr.HTML(apply_default_css=False))
    return {"maps": maps, "times": times}


# ---- events ----


def _wire(page: Any, parts: Components, explorer: Explorer) -> None:
    """Which event runs what. One call of the model at a time, so that measured times are those of one call."""
    alone: dict[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1, "show_progress": "hidden"}
    inputs = [parts.analysis, parts.point, parts.layer, parts.head, parts.scale, parts.wanted, parts.landmarks]
    outputs = [parts.image, parts.about, parts.trained, parts.changed, *parts.maps]
    shown = {"fn": _show(explorer), "inputs": inputs, "outputs": outputs, "api_visibility": "private", **alone}

    def measure(analysis: Analysis, layer: str) -> list[str]:
        of_model, of_layer = explorer.times(analysis, layer)
        return [_table("One image through the model", of_model), _layer_table(layer, of_layer)]

    def show_after(event: Any, *, measured: bool) -> None:
        event = event.success(**shown)
        if measured:
            event.success(measure, [parts.analysis, parts.layer], parts.times, **alone, api_visibility="private")

    fresh = {"outputs": [parts.analysis, parts.point, parts.message, parts.upload], **alone}
    for name, button in zip(explorer.examples, parts.buttons, strict=True):
        show_after(button.click(_example(explorer, name), **fresh, api_visibility="private"), measured=True)
    first = _example(explorer, explorer.examples[0])
    show_after(page.load(first, **fresh, api_visibility="private"), measured=True)
    show_after(parts.upload.upload(_open(explorer), parts.upload, **fresh, api_name="open"), measured=True)

    heads = {"inputs": parts.layer, "outputs": parts.head, **alone, "api_visibility": "private"}
    show_after(
        parts.layer.input(lambda layer: gr.Dropdown(explorer.heads(layer), value=ALL_HEADS), **heads), measured=True
    )
    clicked = parts.image.select(_clicked_point, parts.analysis, parts.point, **alone, api_visibility="private")
    show_after(clicked, measured=False)
    for control in (parts.head, parts.scale, parts.wanted, parts.landmarks):
        control.input(**shown, trigger_mode="always_last")


def _show(explorer: Explorer) -> Any:
    def show(
        analysis: Analysis,
        point: Point,
        layer: str,
        head: str,
        scale: float,
        wanted: list[str],
        landmarks: bool,
    ) -> list[Any]:
        drawn = explorer.attention_images(analysis, layer, head, point, scale, wanted)
        return [
            explorer.marked_image(analysis, layer, point, landmarks=landmarks),
            explorer.describe_layer(analysis, layer),
            analysis.classes,
            explorer.classes_with(analysis, scale),
            *(gr.Image(drawn.get(name), visible=name in wanted) for name in MAPS),
        ]

    return show


def _example(explorer: Explorer, name: str) -> Any:
    return lambda: (explorer.analyse_example(name), CENTRE, "", None)


def _open(explorer: Explorer) -> Any:
    """After an upload: the new image, or a message while the old one stays. The upload is cleared for the next one."""

    def opened(path: str) -> tuple[Any, Any, str, None]:
        try:
            return explorer.analyse_upload(Path(path)), CENTRE, "", None
        except InputError as error:
            gr.Warning(f"This file was rejected: {html.escape(printable(error))}.")
            said = f"**This file was rejected:** {literal(error)}. The last image is still shown."
            return gr.skip(), gr.skip(), said, None

    return opened


def _clicked_point(analysis: Analysis, event: gr.SelectData) -> Point:
    x, y = event.index
    return min(x / analysis.image.width, 1.0), min(y / analysis.image.height, 1.0)


# ---- texts ----


def literal(text: object) -> str:
    """Text of a weights file or about an image as it is: in Markdown it could name an image to be fetched."""
    return re.sub(r"[^\w ]|_", lambda found: f"&#{ord(found[0])};", printable(text))


def _heading(explorer: Explorer) -> str:
    stated = literal(origin(explorer.loaded))
    return (
        "# LaplacianFormer: what it sees, and what it attends to\n"
        f"{stated}. It knows {len(explorer.loaded.classes)} classes, and assigns anything "
        "else to one of them. Everything runs on this computer."
    )


def _trained_at(explorer: Explorer) -> str:
    return "" if explorer.scale is None else f" (trained with {explorer.scale:g})"


def _explanation(explorer: Explorer) -> str:
    mixer = next(iter(explorer.layers.values()))
    how = (
        f"the {mixer.kernel_name.capitalize()} kernel and landmarks"
        if isinstance(mixer, LaplacianAttention)
        else "another mixer"
    )
    return (
        "Colours are relative to uniform attention: 1 where a token counts as much as if all counted the same; blue is "
        f"below 0, subtracted. **The layer itself** is what the model does, with {how}. The other maps compare the "
        "same queries and keys directly, in three ways; nothing was retrained for them, or for another λ. "
        "λ is the sigma of the Gaussian kernel; softmax has none."
    )


def _layer_table(layer: str, times: dict[str, float]) -> str:
    whole = times.pop("whole layer")
    note = f"{layer}, part by part; as it runs in the model, the whole layer takes {whole:.2f} ms"
    return _table(note, times)


def _table(caption: str, times: dict[str, float]) -> str:
    longest = max(times.values())
    rows = "".join(
        f'<tr><td>{name}</td><td>{time:.2f} ms</td><td><div style="width:{100 * time / longest:.0f}%"></div></td></tr>'
        for name, time in times.items()
    )
    return f'<table class="times"><caption>{caption} (medians, CPU)</caption>{rows}</table>'
