"""The layout of the page, and which part of it asks what. Needs gradio; nothing here computes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from laplacianformer import weights
from laplacianformer._util.errors import InputError
from laplacianformer.attention import LaplacianAttention
from laplacianformer.demo.answers import ALL_HEADS, MAPS, TOP, Answers, Looked

CENTRE = (0.5, 0.5)
MOST_BYTES = 20 * 2**20  # of an upload
# Fonts of the system: no others are fetched.
THEME = gr.themes.Base(primary_hue="blue", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
STYLE = """
.gradio-container { max-width: 1180px !important; margin: auto; }
#title h1 { margin-bottom: 0; }
#picture img { cursor: crosshair; }
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
class Parts:
    """What is on the page, and what a visitor's page remembers: the picture, and the place that was clicked."""

    looked: Any
    place: Any
    picture: Any
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


def build(answers: Answers) -> Any:
    """The page, not yet served."""
    with gr.Blocks(title="LaplacianFormer", analytics_enabled=False, delete_cache=(300, 900)) as page:
        gr.Markdown(_heading(answers), elem_id="title")
        parts = Parts(gr.State(), gr.State(CENTRE), **_above(answers), **_controls(answers), **_below(answers))
        _wire(page, parts, answers)
    return page


# ---- layout ----


def _above(answers: Answers) -> dict[str, Any]:
    """The picture, and beside it where pictures come from and their classes."""
    with gr.Row():
        with gr.Column(scale=5, min_width=300):
            picture = gr.Image(
                label="Click a place to see its attention",
                interactive=False,
                buttons=[],
                format="png",
                height="min(400px, 86vw)",
                elem_id="picture",
            )
            landmarks = gr.Checkbox(True, label="Landmarks on the picture", container=False, elem_id="landmarks")
            about = gr.Markdown()
        with gr.Column(scale=4, min_width=300):
            upload = gr.File(label="A picture, up to 20 MB", height=130, elem_id="upload")
            with gr.Row():
                buttons = [gr.Button(name, size="sm", min_width=80) for name in answers.examples]
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
                        ("changed", "Classes with this λ", answers.scale is not None),
                    )
                )
    found = {"picture": picture, "about": about, "upload": upload, "buttons": buttons, "message": message}
    return {**found, "landmarks": landmarks, "trained": trained, "changed": changed}


def _controls(answers: Answers) -> dict[str, Any]:
    first, scale = next(iter(answers.layers)), answers.scale or 4.0
    with gr.Row():
        layer = gr.Dropdown(list(answers.layers), value=first, label="Layer", min_width=250, elem_id="layer")
        head = gr.Dropdown(answers.heads(first), value=ALL_HEADS, label="Head", min_width=250, elem_id="head")
        slider = gr.Slider(
            min(0.25, scale),
            max(16.0, 4 * scale),
            value=scale,
            step=0.25,
            label=f"λ{_trained_at(answers)}",
            min_width=280,
            elem_id="lambda",
        )
    wanted = gr.CheckboxGroup(list(MAPS), value=list(MAPS), label="Side by side", elem_id="wanted")
    return {"layer": layer, "head": head, "scale": slider, "wanted": wanted}


def _below(answers: Answers) -> dict[str, Any]:
    """The maps, what they are, and where the time goes."""
    with gr.Row(elem_id="maps"):
        maps = [
            gr.Image(label=name, interactive=False, buttons=["fullscreen"], format="png", min_width=150)
            for name in MAPS
        ]
    gr.Markdown(_honestly(answers))
    times = []
    with gr.Row(elem_id="times"):
        for _ in range(2):
            with gr.Column(min_width=300):
                times.append(gr.HTML(apply_default_css=False))
    return {"maps": maps, "times": times}


# ---- events ----


def _wire(page: Any, parts: Parts, answers: Answers) -> None:
    """What happens when. The model does one thing at a time, so that a time is that of one thing."""
    alone: dict[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1, "show_progress": "hidden"}
    inputs = [parts.looked, parts.place, parts.layer, parts.head, parts.scale, parts.wanted, parts.landmarks]
    outputs = [parts.picture, parts.about, parts.trained, parts.changed, *parts.maps]
    shown = {"fn": _shower(answers), "inputs": inputs, "outputs": outputs, "api_visibility": "private", **alone}

    def measure(looked: Looked, layer: str) -> list[str]:
        of_model, of_layer = answers.times(looked, layer)
        return [_table("One picture through the model", of_model), _layer_table(layer, of_layer)]

    def show_after(event: Any, *, measured: bool) -> None:
        event = event.success(**shown)
        if measured:
            event.success(measure, [parts.looked, parts.layer], parts.times, **alone, api_visibility="private")

    fresh = {"outputs": [parts.looked, parts.place, parts.message, parts.upload], **alone}
    for name, button in zip(answers.examples, parts.buttons, strict=True):
        show_after(button.click(_example(answers, name), **fresh, api_visibility="private"), measured=True)
    begin = _example(answers, next(iter(answers.examples)))
    show_after(page.load(begin, **fresh, api_visibility="private"), measured=True)
    show_after(parts.upload.upload(_opener(answers), parts.upload, **fresh, api_name="open"), measured=True)

    other = {"inputs": parts.layer, "outputs": parts.head, **alone, "api_visibility": "private"}
    show_after(
        parts.layer.input(lambda layer: gr.Dropdown(answers.heads(layer), value=ALL_HEADS), **other), measured=True
    )
    clicked = parts.picture.select(_click, parts.looked, parts.place, **alone, api_visibility="private")
    show_after(clicked, measured=False)
    for control in (parts.head, parts.scale, parts.wanted, parts.landmarks):
        control.input(**shown, trigger_mode="always_last")


def _shower(answers: Answers) -> Any:
    def show(
        looked: Looked,
        place: tuple[float, float],
        layer: str,
        head: str,
        scale: float,
        wanted: list[str],
        landmarks: bool,
    ) -> list[Any]:
        drawn = answers.maps(looked, layer, head, place, scale, wanted)
        return [
            answers.marked(looked, layer, place, landmarks),
            answers.about(looked, layer),
            looked.classes,
            answers.classes_with(looked, scale),
            *(gr.Image(drawn.get(name), visible=name in wanted) for name in MAPS),
        ]

    return show


def _example(answers: Answers, name: str) -> Any:
    return lambda: (answers.look_at_example(name), CENTRE, "", None)


def _opener(answers: Answers) -> Any:
    """The answer to an upload: the picture, or a message while the old one stays. The place for the next is free."""

    def opened(path: str) -> tuple[Any, Any, str, None]:
        try:
            return answers.look(Path(path)), CENTRE, "", None
        except InputError as error:
            gr.Warning(f"This file was refused: {error}.")
            return gr.skip(), gr.skip(), f"**This file was refused:** {error}. The last picture is still shown.", None

    return opened


def _click(looked: Looked, event: gr.SelectData) -> tuple[float, float]:
    """The place that was clicked, from 0 to 1."""
    x, y = event.index
    return min(x / looked.picture.width, 1.0), min(y / looked.picture.height, 1.0)


# ---- words ----


def _heading(answers: Answers) -> str:
    return (
        "# LaplacianFormer: what it sees, and where it looks\n"
        f"{weights.origin(answers.loaded)}. It knows {len(answers.loaded.classes)} classes, and puts anything else "
        "into one of them. Everything runs on this computer."
    )


def _trained_at(answers: Answers) -> str:
    return "" if answers.scale is None else f" (trained with {answers.scale:g})"


def _honestly(answers: Answers) -> str:
    mixer = next(iter(answers.layers.values()))
    how = (
        f"the {mixer.kernel_name.capitalize()} kernel and landmarks"
        if isinstance(mixer, LaplacianAttention)
        else "another mixer"
    )
    return (
        "Colours count in equal shares: 1 is what a token gets if all count the same; blue is below 0, subtracted. "
        f"**The layer itself** is what the model does, with {how}. The other maps compare the same queries and keys "
        "directly, in three ways; nothing was trained again for them, or for another λ. "
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
