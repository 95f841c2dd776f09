"""Read a recipe by name or path, apply `section.key=value` overrides, and say in one line what is wrong."""

import dataclasses
import difflib
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from laplacianformer._util.errors import InputError
from laplacianformer.classification.recipe import Recipe
from laplacianformer.detection.recipe import DetectionRecipe

AnyRecipe = Recipe | DetectionRecipe


def names() -> list[str]:
    """Recipes inside the package."""
    files = resources.files("laplacianformer.recipes").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def load(name: str, overrides: Iterable[str] = ()) -> AnyRecipe:
    """The recipe of this name, or in this file, with `section.key=value` put over it.

    With a section `detector` it is one for detection, otherwise for classification.
    """
    tree = _parse(_read(name), name)
    if not isinstance(tree, dict):
        raise InputError(f"recipe {name}: expected sections as model: and data:, got {type(tree).__name__}")
    kind: type[AnyRecipe] = DetectionRecipe if "detector" in tree else Recipe
    for override in overrides:
        _put(tree, override)
    try:
        return TypeAdapter(kind).validate_python(tree)
    except ValidationError as error:
        raise InputError(f"recipe {name}: {_explain(error, kind)}") from None


def as_yaml(recipe: AnyRecipe, *, with_root: bool = True) -> str:
    """Every key, defaults included; data.root, which means nothing on another machine, may be left out."""
    plain = TypeAdapter(type(recipe)).dump_python(recipe, mode="json")
    if not with_root:
        plain["data"]["root"] = None
    return yaml.safe_dump(plain, sort_keys=False)


def _read(name: str) -> str:
    if name.endswith((".yaml", ".yml")):
        try:
            return Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"can't read the recipe {name}: {error}") from None
    if name not in names():
        raise InputError(
            f"no recipe {name!r}{_nearest(name, names())}: give a .yaml file or one of {', '.join(names())}"
        )
    return (resources.files("laplacianformer.recipes") / f"{name}.yaml").read_text(encoding="utf-8")


def _parse(text: str, what: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{what} is not YAML: {' '.join(str(error).split())}") from None


def _put(tree: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    *sections, key = path.split(".")
    if not equals or not sections or not all([*sections, key]):
        raise InputError(f"override {override!r}: expected section.key=value, as optimise.epochs=10")
    for section in sections:
        if tree.get(section) is None:
            tree[section] = {}
        tree = tree[section]
        if not isinstance(tree, dict):
            raise InputError(f"override {override!r}: {section} has no keys")
    tree[key] = _parse(text, f"the value of {path}")


def _explain(error: ValidationError, recipe: type[AnyRecipe]) -> str:
    """The first complaint: which key, what was expected, what was given."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"]]
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        known = _keys(recipe, place[:-1])
        return f"unknown key {'.'.join(place)}{_nearest(place[-1], known)}; known: {', '.join(known)}"
    if first["type"] in ("missing", "missing_argument"):
        return f"{'.'.join(place)} is missing"
    message = first["msg"].removeprefix("Value error, ")
    if not place:
        return message
    return f"{'.'.join(place)}: {message[0].lower()}{message[1:]}, got {first['input']!r}"


def _keys(recipe: type[AnyRecipe], section: list[str]) -> list[str]:
    kind: Any = recipe
    for key in section:
        kind = {field.name: field.type for field in dataclasses.fields(kind)}[key]
    return [field.name for field in dataclasses.fields(kind)]


def _nearest(wrong: str, right: Iterable[str]) -> str:
    close = difflib.get_close_matches(wrong, list(right), 1, 0.5)
    return f", did you mean {close[0]!r}?" if close else ""
