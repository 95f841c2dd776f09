"""Public names of a package whose modules need packages that not everyone installs."""

import importlib
from collections.abc import Callable, Mapping, Sequence


def lazy_exports(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """The `__getattr__` of a package that imports these modules, by the names they export, on first use."""
    home = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> object:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{home[name]}"), name)

    return get
