"""Text of a weights file or a file name is shown as text: it makes no element, runs no script and fetches nothing."""

import json
from contextlib import contextmanager

import pytest

from laplacianformer.segmentation import save_segmenter
from laplacianformer.weights import save_weights
from tests.demo.conftest import start
from tests.helpers import INPUT, small_model
from tests.segmentation import helpers as segmentation

SCRIPT = "<img src=x onerror=window.owned=1><script>window.owned=1</script>"
ATTACKS = (
    SCRIPT,
    "![x](http://192.0.2.1/markdown.png)",
    "<img src=http://192.0.2.1/tag.png>",
    "[x](javascript:window.owned=1) http://192.0.2.1/",
    "\n\n# heading\n\n<iframe src=http://192.0.2.1/></iframe>",
    "<svg onload=window.owned=1>",
    "</span><style>*{background:url(http://192.0.2.1/style)}</style>",
)


def save_hostile(path):
    metadata = {"input": json.dumps(INPUT), "data": "".join(ATTACKS), "description": "".join(ATTACKS), "commit": SCRIPT}
    save_weights(path, small_model(), classes=ATTACKS, metadata=metadata)


@pytest.mark.slow
def test_markdown_shows_it_as_it_is():
    page = pytest.importorskip("laplacianformer.demo.page", reason="the page needs gradio", exc_type=ImportError)
    for text in ATTACKS:
        literal = page.literal(text)
        assert not set(literal) & set("<>[]()!*`_\\\n\"'")
    assert page.literal("Zoë 7") == "Zoë 7"


def save_hostile_segmenter(path):
    save_segmenter(path, segmentation.small(num_classes=len(ATTACKS)), labels=list(ATTACKS))


@contextmanager
def visited(browser, root, save):
    """A tab with the page for a file. No script of a text may have run, and nothing elsewhere been asked for."""
    pytest.importorskip("gradio", reason="the page needs gradio: pip install 'laplacianformer[page]'")
    page = start(root, save)
    context = browser.new_context()
    try:
        page.wait()
        tab, asked = context.new_page(), []
        tab.on("request", lambda request: asked.append(request.url))
        tab.on("dialog", lambda dialog: pytest.fail("a script has run"))
        tab.goto(page.address)
        yield tab
        assert tab.evaluate("window.owned") is None
        assert not [url for url in asked if not url.startswith((page.address, "data:", "blob:"))]
    finally:
        context.close()
        page.end()


def upload_no_image(tab, root):
    """Its name is markup, and is in the message."""
    bad = root / "<img src=x onerror=window.owned=1>.png"
    bad.write_text("no image")
    tab.locator("#upload input[type=file]").set_input_files(bad)
    tab.get_by_text("This file was rejected: not an image").first.wait_for()


@pytest.mark.slow
def test_in_a_browser(browser, tmp_path_factory):
    root = tmp_path_factory.mktemp("hostile")
    with visited(browser, root, save_hostile) as tab:
        tab.locator("#times table").nth(1).wait_for()
        upload_no_image(tab, root)
        assert SCRIPT in tab.locator("#title").inner_text()
        assert any(name in ATTACKS for name in tab.locator("#trained dt").all_inner_texts())
        inside = "#title img, #title iframe, #title a, #title script, #trained dl img, #trained dl svg, #changed dl img"
        assert tab.locator(inside).count() == 0


@pytest.mark.slow
def test_the_page_for_a_segmenter_in_a_browser(browser, tmp_path_factory):
    root = tmp_path_factory.mktemp("segmenter")
    with visited(browser, root, save_hostile_segmenter) as tab:
        tab.locator("#covered dt").first.wait_for()
        upload_no_image(tab, root)
        assert SCRIPT in tab.locator("#title").inner_text()
        assert SCRIPT in tab.locator("#covered dt").all_inner_texts()
        inside = ", ".join(f"#{where} {tag}" for where in ("title", "message") for tag in ("img", "iframe", "script"))
        assert tab.locator(f"{inside}, #covered dl img, #covered dl svg, #covered dl iframe").count() == 0
