"""A reader can follow every page from top to bottom: its Python and its commands run, or a table says why not."""

import shlex

import pytest

from tests.docs.helpers import PAGES, README, blocks, name, shell_lines
from tests.docs.running import NOT_RUN, reason, run, words_of

# torch's own, when it first computes forward-mode derivatives.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")

WORDS = {page: [words for block in blocks(page, "python", "bash") for words in words_of(block)] for page in PAGES}
# README.md: test_readme.py
RUNNING = [page for page, found in WORDS.items() if page != README and not all(map(reason, found))]


def cost(page):
    """Commands of the package take seconds."""
    return [pytest.mark.slow] if any(not reason(shlex.join(words)) for words in shell_lines(page)) else []


@pytest.mark.parametrize("page", [pytest.param(page, marks=cost(page), id=name(page)) for page in RUNNING])
def test_a_page_runs(page, monkeypatch, tmp_path):
    run(page, monkeypatch, tmp_path)


def test_what_is_not_run_is_on_a_page():
    everything = [words for found in WORDS.values() for words in found]
    assert not {start for start in NOT_RUN if not any(f"{words} ".startswith(start) for words in everything)}
