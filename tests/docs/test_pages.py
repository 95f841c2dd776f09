"""README.md, docs/ and CONTRIBUTING.md agree with the repository: links, commands, make targets, tests by name."""

import inspect
import os
import re
from pathlib import Path

from laplacianformer import LaplacianAttention
from tests.docs.helpers import LANGUAGES, PAGES, README, ROOT, blocks, commands, links, name, parse, prose, shell_lines

GENERATED = ROOT / "docs" / "reproduction.md"
COLUMNS = {"test_mean_iou"}  # of tables in results/, which are called as a test is


def by_page(find):
    """What `find` objects to on each page, pages without objections left out."""
    return {name(page): found for page in PAGES if (found := list(find(page)))}


def test_relative_links_lead_to_files():
    assert not by_page(
        lambda page: [link for link in links(page) if not (page.parent / link.partition("#")[0]).exists()]
    )


def test_anchors_lead_to_headings():
    def wrong(page):
        for link in links(page):
            path, _, anchor = link.partition("#")
            if anchor:
                headings = re.findall(r"^#+ (.+)$", prose(page.parent / path if path else page), re.MULTILINE)
                if anchor not in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}:
                    yield link

    assert not by_page(wrong)


def test_fenced_blocks_say_their_language():
    assert not by_page(lambda page: {block.language for block in blocks(page)} - LANGUAGES)


def test_code_is_fenced_and_not_indented():
    # Four spaces continue a list or begin a list inside it; after a blank line they would be a block of code.
    assert not by_page(lambda page: re.findall(r"\n\n    (?![-*] )\S.*", prose(page)))


def test_python_blocks_are_python():
    for page in PAGES:
        for block in blocks(page, "python"):
            compile(block.code, name(page), "exec")


def test_commands_are_known(monkeypatch):
    found = [arguments for page in PAGES for arguments in commands(page)]
    assert len(found) > 30
    for arguments in found:
        parse(arguments, monkeypatch)


def test_make_targets_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert not by_page(
        lambda page: {word for words in shell_lines(page) if words[0] == "make" for word in words[1:]} - targets
    )


def test_programs_exist():
    """Also those that are given to `python -m pytest`."""

    def unknown(page):
        for words in shell_lines(page):
            if "python" in words:
                after = words[words.index("python") + 1 :]
                programs = [word for word in after if word.endswith(".py")] if after[0] == "-m" else after[:1]
                yield from (program for program in programs if not (ROOT / program).is_file())

    assert not by_page(unknown)


def test_tests_named_on_a_page_exist():
    paths = list((ROOT / "tests").rglob("*.py"))
    functions = set(re.findall(r"def (test_\w+)\(", "\n".join(path.read_text(encoding="utf-8") for path in paths)))
    files = [path.as_posix() for path in paths]

    def unknown(page):
        for named in re.findall(r"`((?:\w+/)*test_\w+(?:\.py)?)`", prose(page)):
            if not (named in functions | COLUMNS or any(file.endswith(f"/{named}") for file in files)):
                yield named

    assert not by_page(unknown)


def test_a_page_says_first_who_it_is_for():
    def first_line(page):
        title, empty, first, *_ = page.read_text(encoding="utf-8").splitlines()
        if page not in (README, GENERATED) and not (title.startswith("# ") and not empty and first.startswith("For ")):
            yield first

    assert not by_page(first_line)


def test_every_page_can_be_reached_from_the_index():
    index = ROOT / "docs" / "index.md"
    seen, queue = {index}, [index]
    while queue:
        page = queue.pop()
        for link in links(page):
            target = Path(os.path.normpath(page.parent / link.partition("#")[0]))
            if target.suffix == ".md" and target not in seen:
                seen.add(target)
                queue.append(target)
    assert not {name(page) for page in set(PAGES) - seen - {README}}


def test_the_table_of_the_attention_layer_has_its_options_with_their_defaults():
    text = (ROOT / "docs" / "attention.md").read_text(encoding="utf-8")
    stated = dict(re.findall(r"^\| `(\w+)` \| `?([^|`]+?)`? \|", text, re.MULTILINE))
    options = {
        option: (f'"{value}"' if isinstance(value, str) else f"{value:g}" if type(value) is float else str(value))
        for option, parameter in inspect.signature(LaplacianAttention).parameters.items()
        if (value := parameter.default) is not parameter.empty
    }
    assert {option: stated.get(option) for option in options} == options
