"""`laplacianformer demo`, where it can't start. The page itself: tests/demo."""

import importlib.util
import socket

import pytest

from laplacianformer.cli import main
from laplacianformer.commands import demo as command


def code_of(arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return stop.value.code


def test_without_gradio_one_line_says_how_to_install_it(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(command, "find_spec", lambda name: find("there_is_no_gradio" if name == "gradio" else name))
    assert code_of(["demo"]) == 2
    said = "laplacianformer demo: the page needs gradio: pip install 'laplacianformer[page]'\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("port", ["0", "65536", "x"])
def test_a_wrong_port_is_named(port, capsys):
    assert code_of(["demo", "--port", port]) == 2
    assert f"got '{port}'" in capsys.readouterr().err


def test_a_port_in_use_is_named(monkeypatch, capsys):
    monkeypatch.setattr(command, "find_spec", lambda name: True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert code_of(["demo", "--port", str(port)]) == 2
    said = f"laplacianformer demo: the port {port} can't be used (Address already in use): pass another with --port\n"
    assert capsys.readouterr().err == said
