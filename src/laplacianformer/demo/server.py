"""The page, served on this computer alone, from a folder that is removed when it ends."""

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from laplacianformer._util.errors import InputError
from laplacianformer.demo.explorer import Explorer
from laplacianformer.demo.folders import own_folder
from laplacianformer.demo.painter import Painter

HOST = "127.0.0.1"


@contextmanager
def serve(explorer: Explorer | Painter, port: int | None = None) -> Iterator[str]:
    """A block during which the page is served at the returned address. All its files are in one temporary folder."""
    with own_folder() as folder, _local_environment(folder):
        # Not earlier: gradio reads the environment when it is imported.
        from laplacianformer.demo import guard, page, segmentation_page

        blocks = segmentation_page.build(explorer) if isinstance(explorer, Painter) else page.build(explorer)
        try:
            blocks.launch(
                server_name=HOST,
                server_port=port,
                theme=page.THEME,
                css=page.STYLE,
                max_file_size=page.MOST_BYTES,
                app_kwargs={"middleware": guard.guards(Path(folder), page.MOST_BYTES)},
                state_session_capacity=16,
                footer_links=[],
                quiet=True,
                prevent_thread_lock=True,
                share=False,
                ssr_mode=False,
                run_history=False,
                mcp_server=False,
                pwa=False,
                enable_monitoring=False,
            )
        except OSError as error:
            raise InputError(f"the page can't be served: {error}") from None
        try:
            yield blocks.local_url
        finally:
            blocks.close(verbose=False)


def check_port(port: int) -> None:
    """Raise an InputError if the port can't be used."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was closed just now is free
            probe.bind((HOST, port))
    except OSError as error:
        raise InputError(f"the port {port} can't be used ({error.strerror}): pass another with --port") from None


@contextmanager
def _local_environment(folder: str) -> Iterator[None]:
    """Gradio without statistics, hub or proxy, and all files in this folder. Some of this is read on import."""
    local = {
        "GRADIO_ANALYTICS_ENABLED": "False",
        "GRADIO_TEMP_DIR": folder,
        "HF_HUB_OFFLINE": "1",
        "MPLCONFIGDIR": folder,
        "NO_PROXY": f"{HOST},localhost",
        "no_proxy": f"{HOST},localhost",
    }
    environment, temporary = dict(os.environ), tempfile.tempdir
    os.environ.update(local)
    tempfile.tempdir = folder
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = temporary
