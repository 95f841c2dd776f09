"""Builds the site from pages that also read well in the repository.

Pages link to files outside docs/ (results, sources, CONTRIBUTING.md) by relative paths, and mkdocs knows only docs/.
So every file that a page links to joins the site under `repository/`, Markdown as a page, and the links follow it.
A link to a folder becomes plain text: there is nothing to open.
"""

import os
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

OUTSIDE = "repository"
ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^(```.*?^```)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
CODE = re.compile(r"`[^`\n]+`")


def on_files(files: Files, config: Any) -> Files:
    """Add what pages link to, and what these pages link to in turn."""
    pages = [file.src_uri for file in files.documentation_pages()]
    while pages:
        page = pages.pop()
        for target in _targets(page):
            uri = _site_uri(target)
            if target.is_file() and uri.startswith(f"{OUTSIDE}/") and files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, abs_src_path=str(target)))
                pages += [uri] if target.suffix == ".md" else []
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):  # in the navigation, whether or not a page links to them
        if files.get_file_from_path(f"{OUTSIDE}/{name}") is None:
            files.append(File.generated(config, f"{OUTSIDE}/{name}", abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point relative links at where the files are in the site, and write code in tables as Python-Markdown reads it.

    GitHub needs `\\|` for a bar in the code of a cell; Python-Markdown would show the backslash.
    """
    uri = page.file.src_uri

    def follow(match: re.Match[str]) -> str:
        text, link = match.groups()
        target = _target(uri, link)
        if target is None or not target.exists():
            return match.group()  # mkdocs says what is wrong
        if target.is_dir():
            return text
        anchor = link.partition("#")[2]
        found = posixpath.relpath(_site_uri(target), posixpath.dirname(uri) or ".")
        return match.group().replace(f"({link})", f"({found}{'#' + anchor if anchor else ''})")

    def change(text: str) -> str:
        return CODE.sub(lambda code: code.group().replace("\\|", "|"), LINK.sub(follow, text))

    return _outside_fences(markdown, change)


def _targets(uri: str) -> list[Path]:
    found: list[Path] = []

    def see(text: str) -> str:
        found.extend(target for _, link in LINK.findall(text) if (target := _target(uri, link)) is not None)
        return text

    _outside_fences(_path(uri).read_text(encoding="utf-8"), see)
    return found


def _target(uri: str, link: str) -> Path | None:
    """The file or folder of a relative link; None for anchors and addresses."""
    path = link.partition("#")[0]
    if not path or ":" in path:
        return None
    return Path(os.path.normpath(_path(uri).parent / path))


def _path(uri: str) -> Path:
    """Where a page of the site is in the repository."""
    outside, _, rest = uri.partition("/")
    return ROOT / rest if outside == OUTSIDE else ROOT / "docs" / uri


def _site_uri(path: Path) -> str:
    """Where a file of the repository is in the site."""
    docs = ROOT / "docs"
    inside = path.is_relative_to(docs)
    return path.relative_to(docs).as_posix() if inside else f"{OUTSIDE}/{path.relative_to(ROOT).as_posix()}"


def _outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    """Every second part is a fenced block, and stays as it is."""
    parts = FENCE.split(markdown)
    return "".join(part if index % 2 else change(part) for index, part in enumerate(parts))
