"""constraints.txt: exact versions with hashes of everything that pyproject.toml asks for. `make lock` writes it."""

import re
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

tomllib: Any = pytest.importorskip("tomllib", reason="needs Python 3.11 or newer, as constraints.txt does")

ROOT = Path(__file__).parents[1]
OWN = "laplacianformer"
pytestmark = pytest.mark.skipif(not (ROOT / "constraints.txt").exists(), reason="the tests run outside of a checkout")


def entries(text: str) -> list[str]:
    """The lines of a requirements file, continued lines joined, without comments."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def locked() -> dict[str, list[Requirement]]:
    """The requirements by name: one per platform where these differ."""
    found: dict[str, list[Requirement]] = {}
    for entry in entries((ROOT / "constraints.txt").read_text(encoding="utf-8")):
        requirement = Requirement(entry.partition(" --hash=")[0])
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def asked_for() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"].values()
    groups = project["project"]["dependencies"], project["build-system"]["requires"], *extras
    return [each for group in groups for each in map(Requirement, group) if each.name != OWN]


def test_every_entry_is_one_version_with_hashes_and_nothing_else() -> None:
    for entry in entries((ROOT / "constraints.txt").read_text(encoding="utf-8")):
        requirement, *hashes = entry.split(" --hash=")
        assert re.fullmatch(r"[\w.-]+==[\w.!+]+( ; .+)?", requirement.strip()), entry
        assert hashes, f"{requirement} has no hashes: make lock"
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each.strip()) for each in hashes), requirement


def test_everything_that_is_asked_for_is_locked_in_a_version_that_fits() -> None:
    versions = locked()
    unfit = [
        str(requirement)
        for requirement in asked_for()
        if not versions.get(canonicalize_name(requirement.name))
        or any(
            not requirement.specifier.contains(next(iter(each.specifier)).version, prereleases=True)
            for each in versions[canonicalize_name(requirement.name)]
        )
    ]
    assert not unfit, f"constraints.txt is older than pyproject.toml ({unfit}): make lock"


def test_what_is_installed_by_its_hashes_asks_for_nothing_else() -> None:
    """Everything that the locked packages need here is locked, too."""
    versions = locked()

    def here(requirement: Requirement) -> bool:
        return requirement.marker is None or requirement.marker.evaluate({"extra": ""})

    used = [name for name, found in versions.items() if any(map(here, found))]
    try:
        needed = {name: [Requirement(text) for text in requires(name) or []] for name in used}
    except PackageNotFoundError as error:
        pytest.skip(f"{error.name} is not installed: make did not set up this environment")
    missing = {
        name: unknown
        for name, found in needed.items()
        if (unknown := [str(each) for each in found if here(each) and canonicalize_name(each.name) not in versions])
    }
    assert not missing
