"""`laplacianformer demo`: serve the page on this computer alone, from a folder that is gone when it ends."""

import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.text import Text

from laplacianformer import weights
from laplacianformer._util.errors import InputError
from laplacianformer.demo.answers import Answers

HOST = "127.0.0.1"


def run(*, file: Path | None, port: int | None) -> None:
    """The command: until it is interrupted."""
    missing = [name for name in ("gradio", "matplotlib") if find_spec(name) is None]
    if missing:
        raise InputError(f"the page is made with {' and '.join(missing)}: pip install 'laplacianformer[page]'")
    _check_port(port)
    answers = Answers(weights.load_chosen(file))
    answers.look_at_example(next(iter(answers.examples)))  # what can go wrong with these weights goes wrong here
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the folder is removed then, too
    with suppress(KeyboardInterrupt), served(answers, port) as address:
        Console(stderr=True, soft_wrap=True).print(Text(f"The page is at {address} (Ctrl+C ends it)"))
        threading.Event().wait()


@contextmanager
def served(answers: Answers, port: int | None = None) -> Iterator[str]:
    """A block in which the page is at the address that is given. All its files are in one temporary folder."""
    with tempfile.TemporaryDirectory(prefix="laplacianformer-") as folder, _only_here(folder):
        from laplacianformer.demo import app  # only here: gradio reads the environment when it is imported

        page = app.build(answers)
        try:
            page.launch(
                server_name=HOST,
                server_port=port,
                theme=app.THEME,
                css=app.STYLE,
                max_file_size=app.MOST_BYTES,
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
            yield page.local_url
        finally:
            page.close(verbose=False)


def _check_port(port: int | None) -> None:
    """Before anything is loaded, that a port can be had."""
    if port is not None:
        try:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was closed just now is free
                probe.bind((HOST, port))
        except OSError as error:
            raise InputError(f"the port {port} can't be used ({error.strerror}): pass another with --port") from None


@contextmanager
def _only_here(folder: str) -> Iterator[None]:
    """Gradio without statistics, hub or proxy, and all files in this folder. Some of this is read on import."""
    local = {
        "GRADIO_ANALYTICS_ENABLED": "False",
        "GRADIO_TEMP_DIR": folder,
        "HF_HUB_OFFLINE": "1",
        "MPLCONFIGDIR": folder,
        "NO_PROXY": f"{HOST},localhost",
        "no_proxy": f"{HOST},localhost",
    }
    before = dict(os.environ), tempfile.tempdir
    os.environ.update(local)
    tempfile.tempdir = folder
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before[0])
        tempfile.tempdir = before[1]
