"""The page as it is served: what it accepts and rejects, and that it stays on this computer and in its folder.

The tests with a browser need Debian's chromium (or another) and playwright.
"""

import json
import re
from pathlib import Path

import pytest

from laplacianformer.classification._inference import predict
from laplacianformer.weights import load_weights
from tests.helpers import picture

httpx = pytest.importorskip("httpx", reason="comes with gradio: pip install 'laplacianformer[page]'")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    picture(3, (80, 60)).save(folder / "good.png")
    (folder / "bad.png").write_text("no image at all")
    (folder / "large.png").write_bytes(bytes(21 * 2**20))
    return folder


# ---- over HTTP ----


@pytest.fixture
def client(running):
    with httpx.Client(base_url=f"{running.address}gradio_api/", trust_env=False, timeout=60) as client:
        yield client


def upload(client, path):
    with path.open("rb") as file:
        return client.post("upload", files={"files": file})


def opened(client, path):
    """The message that the page shows after an upload."""
    file = {"path": upload(client, path).raise_for_status().json()[0], "meta": {"_type": "gradio.FileData"}}
    event = client.post("call/open", json={"data": [file]}).raise_for_status().json()["event_id"]
    kind, data = client.get(f"call/open/{event}").text.strip().splitlines()[-2:]
    assert kind == "event: complete"
    return json.loads(data.removeprefix("data: "))[2]


@pytest.mark.slow
def test_an_image_is_accepted_and_anything_else_is_rejected_with_a_reason(client, files):
    assert opened(client, files / "good.png") == ""
    said = "**This file was rejected:** not an image in a format that Pillow reads. The last image is still shown."
    assert opened(client, files / "bad.png") == said


@pytest.mark.slow
@pytest.mark.parametrize("name", ["with space", "Größe 日本語 😀", "-dash", "100%s %d%%", "[bold] {0} $HOME ~ *"])
def test_names_of_any_kind_are_accepted(client, tmp_path, name):
    path = tmp_path / f"{name}.png"
    picture(3, (80, 60)).save(path)
    assert opened(client, path) == ""


@pytest.mark.slow
def test_a_file_that_is_too_large_is_rejected(client, files):
    assert upload(client, files / "large.png").status_code == 413


@pytest.mark.slow
def test_other_files_of_the_computer_are_not_served(client, running):
    for path in (running.root / "model.safetensors", Path(__file__)):
        assert client.get(f"file={path}").status_code == 403


# ---- in a browser ----


@pytest.fixture(params=[(1280, 900), (390, 844)], ids=["wide", "phone"])
def tab(browser, running, request):
    """The page, loaded with its first image; `tab.asked` are the addresses it asked for."""
    context = browser.new_context(viewport=dict(zip(("width", "height"), request.param, strict=True)))
    tab = context.new_page()
    tab.asked = []
    tab.on("request", lambda asked: tab.asked.append(asked.url))
    tab.goto(running.address)
    tab.locator("#times table").nth(1).wait_for()
    yield tab
    context.close()


def source(tab, selector):
    return tab.locator(f"{selector} img").first.get_attribute("src")


def wait_for_another(tab, selector, old):
    tab.wait_for_function("([s, old]) => document.querySelector(s + ' img')?.src !== old", arg=[selector, old])


def classes(tab):
    return tab.locator("#trained dt").all_inner_texts()


def best(running, path):
    """The classes that `predict` gives, the best first."""
    (found,) = predict(load_weights(running.root / "model.safetensors"), [str(path)], top=5)
    return [name for name, _ in found.ranking]


@pytest.mark.slow
def test_a_visit(tab, running, files):
    """Upload, click, slider, switch, a bad file: each does what it says, and nothing leaves this computer."""
    assert tab.title() == "LaplacianFormer"
    assert len(classes(tab)) == 5
    assert tab.locator("#maps img:visible").count() == 4

    first = source(tab, "#image")
    tab.locator("#upload input[type=file]").set_input_files(files / "good.png")
    wait_for_another(tab, "#image", first)
    assert classes(tab) == best(running, files / "good.png")

    second, own = source(tab, "#image"), source(tab, "#maps")
    box = tab.locator("#image img").bounding_box()
    tab.locator("#image img").click(position={"x": 0.2 * box["width"], "y": 0.7 * box["height"]})
    wait_for_another(tab, "#image", second)
    wait_for_another(tab, "#maps", own)

    own, before = source(tab, "#maps"), tab.locator("#changed").inner_text()
    tab.locator("#lambda input[type=range]").press("Home")  # the handle, to its least
    wait_for_another(tab, "#maps", own)
    assert tab.locator("#changed").inner_text() != before

    tab.get_by_label("softmax").last.uncheck()
    tab.wait_for_function("document.querySelectorAll('#maps img').length === 3")

    tab.locator("#upload input[type=file]").set_input_files(files / "bad.png")
    tab.get_by_text(re.compile("This file was rejected: not an image")).first.wait_for()
    assert tab.locator("#image img").is_visible()

    width, inside = tab.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width <= inside, "the page scrolls sideways"
    outside = [url for url in tab.asked if not url.startswith((running.address, "data:", "blob:"))]
    assert not outside


# ---- at the end ----


@pytest.mark.slow
def test_it_stays_on_this_computer_and_in_its_folder_which_is_gone_then(running, client, files):
    """Also what the tests before this one did to it, where they ran in the same process."""
    assert opened(client, files / "good.png") == ""
    within = [str(path) for path in (running.root / "temporary").iterdir()]
    assert len(within) == 1
    report = running.end()
    addresses = {line for line in report if line.startswith("socket.")}
    assert addresses <= {"socket.bind 127.0.0.1", "socket.connect 127.0.0.1"}
    assert "socket.bind 127.0.0.1" in addresses
    written = [line.removeprefix("write ") for line in report if line.startswith("write ")]
    temporary, others = str(running.root / "temporary"), {"/dev/null", str(running.root / "torch")}
    assert any(path.startswith(within[0]) and path.endswith("good.png") for path in written)
    assert {path for path in written if not path.startswith(temporary)} <= others
    assert all(not any((running.root / name).iterdir()) for name in ("home", "temporary", "working", "torch"))
