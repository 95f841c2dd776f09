"""The layout of the page for a segmenter, and its events. Needs gradio; all computation is in `painter`."""

import html
from pathlib import Path
from typing import Any

import gradio as gr

from laplacianformer._util.errors import InputError
from laplacianformer._util.limits import one_line
from laplacianformer._util.text import printable
from laplacianformer.demo.page import literal
from laplacianformer.demo.painter import Painted, Painter
from laplacianformer.segmentation._pictures import OPACITY

TOP = 8  # classes that are listed


def build(painter: Painter) -> Any:
    """The page, not yet served."""
    with gr.Blocks(title="LaplacianFormer", analytics_enabled=False, delete_cache=(300, 900)) as page:
        gr.Markdown(_heading(painter), elem_id="title")
        with gr.Row():
            with gr.Column(scale=6, min_width=300):
                image = gr.Image(
                    label="Classes", interactive=False, buttons=["fullscreen"], format="png", elem_id="image"
                )
                opacity = gr.Slider(0, 1, value=OPACITY, step=0.05, label="Opacity of the colours", elem_id="opacity")
            with gr.Column(scale=3, min_width=300):
                upload = gr.File(label="An image, up to 20 MB", height=130, elem_id="upload")
                with gr.Row():
                    buttons = [gr.Button(name, size="sm", min_width=80) for name in painter.examples]
                message = gr.Markdown(elem_id="message")
                covered = gr.Label(
                    label="Part of the image", num_top_classes=TOP, show_heading=False, elem_id="covered"
                )
        parts = {"painted": gr.State(), "image": image, "opacity": opacity, "upload": upload}
        _wire(page, painter, {**parts, "message": message, "covered": covered}, buttons)
    return page


def _wire(page: Any, painter: Painter, parts: dict[str, Any], buttons: list[Any]) -> None:
    """Which event runs what. One call of the model at a time."""
    alone: dict[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1, "show_progress": "hidden"}
    fresh = {"outputs": [parts["painted"], parts["message"], parts["upload"]], **alone}

    def show(painted: Painted, opacity: float) -> tuple[Any, dict[str, float]]:
        return painter.drawn(painted, opacity), painted.covered

    shown = {
        "fn": show,
        "inputs": [parts["painted"], parts["opacity"]],
        "outputs": [parts["image"], parts["covered"]],
        "api_visibility": "private",
        **alone,
    }
    for name, button in zip(painter.examples, buttons, strict=True):
        button.click(_example(painter, name), **fresh, api_visibility="private").success(**shown)
    page.load(_example(painter, painter.examples[0]), **fresh, api_visibility="private").success(**shown)
    parts["upload"].upload(_open(painter), parts["upload"], **fresh, api_name="open").success(**shown)
    parts["opacity"].input(**shown, trigger_mode="always_last")


def _example(painter: Painter, name: str) -> Any:
    return lambda: (painter.paint_example(name), "", None)


def _open(painter: Painter) -> Any:
    """After an upload: the new image, or a message while the old one stays. The upload is cleared for the next one."""

    def opened(path: str) -> tuple[Any, str, None]:
        try:
            return painter.paint_upload(Path(path)), "", None
        except InputError as error:
            gr.Warning(f"This file was rejected: {html.escape(printable(error))}.")
            return gr.skip(), f"**This file was rejected:** {literal(error)}. The last image is still shown.", None

    return opened


def _heading(painter: Painter) -> str:
    loaded = painter.loaded
    names = loaded.labels.names
    listed = literal(one_line(", ".join([*names[:20], *(["..."] if len(names) > 20 else [])]), 1000))
    return (
        "# LaplacianFormer: the class of every pixel\n"
        f"{literal(loaded.path.name)}: {literal(loaded.metadata['architecture'])} on "
        f"{literal(loaded.model.arguments['backbone'])}. It knows {len(names)} classes ({listed}), and assigns "
        "everything to one of them. Everything runs on this computer."
    )
