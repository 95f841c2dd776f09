"""The site builds without a warning and loads nothing from the network."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.helpers import ROOT

pytest.importorskip("material", reason="install laplacianformer[docs]")
pytest.importorskip("mkdocstrings", reason="install laplacianformer[docs]")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(output)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return output


def test_pages_load_nothing_from_the_network(site):
    loaded = re.compile(r"""<(?:script|link|img|iframe)[^>]*?(?:src|href)=["']?(?:https?:)?//[^\s"'>]+""")
    external = {page.name: loaded.findall(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}
    assert len(external) > 20
    assert not {page: found for page, found in external.items() if found}


def test_the_search_works_without_a_server(site):
    assert (site / "search" / "search_index.js").is_file()
    assert "assets/iframe-worker.js" in (site / "index.html").read_text(encoding="utf-8")


def test_files_that_pages_link_to_are_there(site):
    for page in site.rglob("*.html"):
        for link in re.findall(r'(?:href|src)="((?:\.\./)*repository/[^"#]+)', page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_reference_has_the_ops(site):
    reference = (site / "api" / "ops.html").read_text(encoding="utf-8")
    for op in ("laplacian_kernel", "laplacian_matmul", "newton_schulz"):
        assert f'id="laplacianformer.ops.{op}"' in reference
