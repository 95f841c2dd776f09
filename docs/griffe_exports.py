"""An op and the folder it lives in have the same name: in the API reference, `__all__` means the op."""

from typing import Any

import griffe


class Exports(griffe.Extension):
    """Puts the imported object in place of the submodule, wherever `__all__` lists a name that is both."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        modules = [pkg]
        for module in modules:
            modules.extend(member for member in module.modules.values() if not member.is_alias)
        for module in modules:
            names = [str(name) for name in module.exports or () if name in module.imports]
            # All targets before the first change: a path may lead through a submodule that is about to be replaced.
            found = {name: self._target(module.imports[name], loader) for name in names}
            for name, target in found.items():
                if target is not None and not target.is_module:
                    module.set_member(name, griffe.Alias(name, target, parent=module))

    @staticmethod
    def _target(path: str, loader: griffe.GriffeLoader) -> Any:
        try:
            found = loader.modules_collection[path]
            return found.final_target if found.is_alias else found
        except (KeyError, griffe.AliasResolutionError):
            return None  # of another package
