"""YAML in which no key is there twice: PyYAML alone takes the last one and says nothing."""

from typing import Any

import yaml


class UniqueKeyLoader(yaml.SafeLoader):
    """yaml.SafeLoader that refuses a key that is already there. `<<` brings keys that may be replaced."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = dict[str, yaml.Mark]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    first = seen[key.value].line + 1
                    problem = f"the key {key.value!r} is there twice: it is in line {first} already"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen[key.value] = key.start_mark
        return super().construct_mapping(node, deep)
