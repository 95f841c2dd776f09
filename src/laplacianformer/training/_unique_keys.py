"""YAML without duplicate keys: PyYAML alone takes the last one and says nothing."""

from typing import Any

import yaml

from laplacianformer._util import limits

_KIND = "tag:yaml.org,2002:"


class UniqueKeyLoader(yaml.SafeLoader):
    """yaml.SafeLoader that refuses a key that is already there, merge keys, and numbers of too many digits.

    Merge keys (`<<`) copy entries: a few lines of them make more than memory holds, before anything can be counted.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = dict[str, yaml.Mark]()
        for key, _ in node.value:
            if key.tag == f"{_KIND}merge":
                raise _error("merge keys (<<) are not read: write the keys and values out", key.start_mark)
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    first = seen[key.value].line + 1
                    problem = f"the key {key.value!r} appears twice: it is in line {first} already"
                    raise _error(problem, key.start_mark)
                seen[key.value] = key.start_mark
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> float:
        """PyYAML's, whose time for numbers such as 1:30:00 grows with the square of their length."""
        if len(str(self.construct_scalar(node))) > limits.MOST_DIGITS:
            raise _error(f"a number has more than {limits.MOST_DIGITS} characters", node.start_mark)
        whole = node.tag == f"{_KIND}int"
        number: float = self.construct_yaml_int(node) if whole else self.construct_yaml_float(node)
        return number


for kind in ("int", "float"):
    UniqueKeyLoader.add_constructor(f"{_KIND}{kind}", UniqueKeyLoader.construct_number)


def _error(problem: str, mark: yaml.Mark) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, mark)
