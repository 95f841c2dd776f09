"""Private names of other packages: who may use which, and why."""

import ast
import re
from pathlib import Path

import pytest

from tests.house import PACKAGE, SRC, Offence, dotted, fail_on, imports, modules, tree

pytestmark = pytest.mark.skipif(not SRC.exists(), reason="the tests run outside of a checkout")

# Private names of others may change with every release: for torch, one module deals with them. Others that may, which
# names, and why there is no other way.
PRIVATE: dict[str, tuple[str, ...]] = {
    "ops/_tracing.py": ("",),  # whether an op is being traced: torch answers only parts of it in public
    "ops/linear/onednn.py": ("torch.ops.mkldnn._linear_pointwise",),  # oneDNN has no public name for dense tensors
    "export/_aot_inductor.py": ("torch._inductor.",),  # the documented way to compile a package has no public name
    "model/backbone.py": ("timm.models._features.feature_take_indices",),  # in every model of timm
    "inspect/_cost.py": ("torch.utils._python_dispatch.TorchDispatchMode",),  # documented, and has no public name
    "export/_card.py": ("timm.models._hub.generate_readme",),  # what timm writes, so that its hub reads it
    "experiments/rivals.py": ("torch._dynamo.reset",),  # what torch's own error message says to call
    "nn.py": ("old._qkv_same_embed_dim",),  # nothing else says that an attention is cross attention
    "data/_workers.py": ("os._exit",),  # documented
}
# `_x` of anything but `self` and `cls`; `_replace` and `_asdict` of a named tuple are public.
_PRIVATE_NAME = re.compile(r"(?<!^self)(?<!^cls)\._(?!replace\b|asdict\b|_)\w")


def private_names(path: Path) -> list[tuple[int, str]]:
    """Line and name of everything private that others define: imported, or an attribute of an object of theirs."""
    nodes = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)]
    parts = {id(node.value) for node in nodes}  # of longer names
    found = [(line, name) for line, name in imports(path) if not name.startswith("laplacianformer.")]
    found += [(node.lineno, dotted(node)) for node in nodes if id(node) not in parts]
    return [(line, name) for line, name in found if _PRIVATE_NAME.search(name)]


def test_private_names_of_others_stay_in_one_module() -> None:
    offences = []
    for path in modules():
        granted = PRIVATE.get(path.relative_to(PACKAGE).as_posix(), ())
        offences += [Offence(path, line, name) for line, name in private_names(path) if not name.startswith(granted)]
    fail_on(offences)


def test_what_may_use_private_names_does() -> None:
    """A name that is no longer used leaves the table."""
    for path, granted in PRIVATE.items():
        used = [name for _, name in private_names(PACKAGE / path)]
        assert not [name for name in granted if not any(one.startswith(name) for one in used)], path


def test_private_names_are_found(tmp_path, monkeypatch) -> None:
    module = tmp_path / "laplacianformer" / "data" / "code.py"
    module.parent.mkdir(parents=True)
    module.write_text(
        "from torch.utils import _pytree\ndef f(self):\n    torch._C.x()\n    self._a = 1\n"
        "    self.model._parameters\n    func._overloadpacket.name\n    pair._replace(a=1)\n    x.__class__\n"
    )
    monkeypatch.setattr("tests.house.SRC", tmp_path)
    expected = [(1, "torch.utils._pytree"), (3, "torch._C.x"), (5, "self.model._parameters")]
    assert sorted(private_names(module)) == [*expected, (6, "func._overloadpacket.name")]
