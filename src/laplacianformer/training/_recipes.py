"""Read a recipe by name or path, apply `section.key=value` overrides, and say in one line what is wrong."""

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from laplacianformer._util import limits
from laplacianformer._util.errors import InputError
from laplacianformer._util.files import open_regular
from laplacianformer.training._unique_keys import UniqueKeyLoader

Recipe = TypeVar("Recipe")


def names() -> list[str]:
    """The recipes of the package."""
    return sorted(file.name.removesuffix(".yaml") for file in _folder().iterdir() if file.name.endswith(".yaml"))


def load(name: str, kinds: Mapping[str, type[Recipe]], overrides: Iterable[str] = ()) -> Recipe:
    """The recipe with this name, or in this file, with `section.key=value` overrides applied.

    Args:
        kinds: types of recipes by the section that only this type has: {"model": Recipe, "detector": DetectionRecipe}.
            A type may have a function `complete` that fills in keys which the file leaves to something else, and a
            table `replaced` of recipes that no longer exist, with what follows `--recipe` now.
    """
    tree = parse_yaml(_read(name, kinds.values()), name)
    if not isinstance(tree, dict):
        raise InputError(f"recipe {name}: expected sections such as data: and optimise:, got {type(tree).__name__}")
    stated = set(tree)  # what the file says decides; where it says nothing, the overrides do
    own = next((section for section in kinds if section in stated), "model")
    for override in overrides:  # model.weights is one name for all tasks, whatever the section of their model is called
        _apply(tree, f"{own}{override.removeprefix('model')}" if override.startswith("model.weights=") else override)
    kind = next((kind for sections in (stated, tree) for section, kind in kinds.items() if section in sections), None)
    if kind is None:
        raise InputError(f"recipe {name}: expected a section {' or '.join(f'{section}:' for section in kinds)}")
    complete: Callable[[dict[str, Any]], None] | None = getattr(kind, "complete", None)
    if complete is not None:
        complete(tree)
    return validated(tree, kind, f"recipe {name}")


def validated(tree: Any, kind: type[Recipe], what: str) -> Recipe:
    """A recipe, or one of its sections, from the values of its keys. `what` names it in messages."""
    try:
        return TypeAdapter(kind).validate_python(tree)
    except ValidationError as error:
        raise InputError(f"{what}: {limits.one_line(_explain(error, kind))}") from None


def stated_section(
    path: Path, metadata: Mapping[str, str], section: str, kind: type[Recipe], changes: Mapping[str, Any] | None = None
) -> Recipe:
    """A section of the recipe in a weights file, which may come from anyone, with other values for some keys. Where
    the file has no recipe, the section has its defaults."""
    what, text = f"the recipe in the metadata of {path}", metadata.get("recipe", "{}")
    if len(text) > limits.MOST_RECIPE_BYTES:
        raise InputError(f"{what} has more than {limits.MOST_RECIPE_BYTES} bytes")
    tree = parse_yaml(text, what)
    found = tree.get(section, {}) if isinstance(tree, dict) else None
    if not isinstance(found, dict):
        raise InputError(f"{what} has no section {section}: expected keys and values, got {limits.shown(tree)}")
    return validated({**found, **(changes or {})}, kind, f"{what}, section {section}")


def as_yaml(recipe: Any, *, with_paths: bool = True) -> str:
    """Every key, defaults included. Paths, which mean nothing on another machine, may be left out: data.root, and the
    folder of the weights that a run starts from."""
    plain = TypeAdapter(type(recipe)).dump_python(recipe, mode="json")
    if not with_paths:
        plain["data"]["root"] = None
        for section in plain.values():
            if section.get("weights"):
                section["weights"] = Path(section["weights"]).name
    return yaml.safe_dump(plain, sort_keys=False)


def with_defaults(text: str, kind: type) -> str:
    """A recipe that an earlier version wrote, with the defaults of keys that it did not have."""
    try:
        return as_yaml(TypeAdapter(kind).validate_python(parse_yaml(text, "the recipe of the checkpoint")))
    except ValidationError:  # it had keys that no longer exist: those will be the difference
        return text


def read_yaml(path: Path) -> Any:
    """The values in a YAML file that may come from anyone: of JSON's types, within the limits of a recipe."""
    return parse_yaml(_read_file(path), str(path))


def _folder() -> Any:
    return resources.files("laplacianformer") / "recipes"


def _read(name: str, kinds: Iterable[type] = ()) -> str:
    if name.endswith((".yaml", ".yml")):
        return _read_file(Path(name), "the recipe ")
    if name not in names():
        replaced = {old: new for kind in kinds for old, new in getattr(kind, "replaced", {}).items()}
        if name in replaced:
            command = f"laplacianformer train --output runs/{name} --recipe {replaced[name]}"
            raise InputError(f"the recipe {name!r} was replaced by another with overrides: {command}")
        raise InputError(
            f"no recipe {name!r}{_nearest(name, names())}: give a .yaml file or one of {', '.join(names())}"
        )
    built_in: str = (_folder() / f"{name}.yaml").read_text(encoding="utf-8")
    return built_in


def _read_file(path: Path, what: str = "") -> str:
    try:
        with open_regular(path) as file:
            data = file.read(limits.MOST_RECIPE_BYTES + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError, ValueError) as error:  # also a name with a null character
        raise InputError(f"can't read {what}{path}: {limits.reason(error)}") from None
    if len(data) > limits.MOST_RECIPE_BYTES:
        raise InputError(f"{what}{path} has more than {limits.MOST_RECIPE_BYTES} bytes")
    return text


def parse_yaml(text: str, what: str) -> Any:
    """The values of a text, within limits; an InputError says what is wrong with `what`."""
    try:
        tree = yaml.load(text, UniqueKeyLoader)
    except RecursionError:
        raise InputError(f"{what} is nested too deeply: at most {limits.MOST_NESTED} levels") from None
    except Exception as error:  # the constructors of values raise whatever they meet, `!!int x` for example
        raise InputError(f"{what} is not YAML: {limits.reason(error)}") from None
    _check_values(tree, what)
    return tree


def _check_values(tree: Any, what: str) -> None:
    """Refuse what JSON does not have, such as dates, and a tree that its aliases make endless."""
    for count, (keys, value) in enumerate(limits.leaves(tree, what), 1):
        if count > limits.MOST_VALUES:
            raise InputError(f"{what} has more than {limits.MOST_VALUES} values")
        wrong = next((key for key in keys if not isinstance(key, str | int)), None)
        if wrong is not None:
            raise InputError(f"{what}: the key {limits.shown(wrong)} is not text")
        if not all(limits.is_unicode(text) for text in (*keys, value) if isinstance(text, str)):
            raise InputError(f"{what} has text that is not Unicode (half of a surrogate pair)")
        if value is not None and not isinstance(value, str | int | float):
            where = ".".join(map(str, keys))
            raise InputError(
                f"{what}: {where} is {limits.shown(value)}, a {type(value).__name__}: "
                "expected text, a number, true or false; put text in quotes"
            )


def _apply(tree: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    *sections, key = path.split(".")
    if not equals or not sections or not all([*sections, key]):
        raise InputError(f"override {override!r}: expected section.key=value, for example optimise.epochs=10")
    for section in sections:
        if tree.get(section) is None:
            tree[section] = {}
        tree = tree[section]
        if not isinstance(tree, dict):
            raise InputError(f"override {override!r}: {section} has no keys")
    tree[key] = parse_yaml(text, f"the value of {path}")


def _explain(error: ValidationError, recipe: type) -> str:
    """The first mistake: which key, what was expected, what was given."""
    first = error.errors()[0]
    location = [str(part) for part in first["loc"]]
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        known = _keys(recipe, location[:-1])
        return f"unknown key {'.'.join(location)}{_nearest(location[-1], known)}; known: {', '.join(known)}"
    if first["type"] in ("missing", "missing_argument"):
        return f"{'.'.join(location)} is missing"
    message = first["msg"].removeprefix("Value error, ")
    if not location:
        return message
    return f"{'.'.join(location)}: {message[:1].lower()}{message[1:]}, got {limits.shown(first['input'])}"


def _keys(recipe: type, section: list[str]) -> list[str]:
    kind: Any = recipe
    for key in section:
        kind = {field.name: field.type for field in dataclasses.fields(kind)}[key]
    return [field.name for field in dataclasses.fields(kind)]


def _nearest(wrong: str, right: Iterable[str]) -> str:
    close = difflib.get_close_matches(wrong, list(right), 1, 0.5)
    return f", did you mean {close[0]!r}?" if close else ""
