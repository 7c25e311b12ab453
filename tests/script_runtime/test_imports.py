"""What a written script carries along needs torch and the standard library alone."""

import ast
import sys
from pathlib import Path

import pytest

import torchsleuth.script_runtime

OWN = torchsleuth.script_runtime.__name__
MODULES = sorted(Path(torchsleuth.script_runtime.__file__).parent.glob("*.py"))


def imported(path):
    """The full names of all modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively, which a pasted text cannot"
            yield node.module
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            name = node.args[0]
            # A name that is computed is one of torch's settings or of the user's own modules.
            if isinstance(name, ast.Constant):
                yield name.value


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_imports_torch_the_standard_library_and_its_own_room_only(path):
    allowed = {"torch", *sys.stdlib_module_names}
    strangers = {
        name
        for name in imported(path)
        if name.partition(".")[0] not in allowed and name != OWN and not name.startswith(f"{OWN}.")
    }
    assert not strangers


def test_the_rule_notices_a_stranger(tmp_path):
    file = tmp_path / "made.py"
    file.write_text(
        "import os\ndef f():\n    from torchsleuth.torch_core.graphs import cut\n    import numpy.random\n"
    )
    assert list(imported(file)) == ["os", "torchsleuth.torch_core.graphs", "numpy.random"]
