"""Writing scripts: what is pasted stands alone."""

import ast
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from torchsleuth.repro.script import _runtime, one_line, split_module


def test_the_pasted_runtime_defines_every_name_it_uses_once():
    imports, body = _runtime()
    tree = ast.parse("\n".join(imports) + "\n" + body)
    defined = [n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    assert len(defined) == len(set(defined)), "two pasted modules define the same name"
    assert not any("torchsleuth" in line for line in imports)
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--select", "F821", "--isolated", "-"],
        input="\n".join(imports) + "\n" + body,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@given(st.text())
def test_no_text_of_a_failure_can_leave_the_docstring(text):
    source = f'"""{one_line(text)} """\nX = 1\n'
    tree = ast.parse(source)
    assert [type(node) for node in tree.body] == [ast.Expr, ast.Assign]


def test_split_module_keeps_comments_and_drops_what_is_ours():
    imports, body = split_module(
        '"""Doc."""\nimport os, re\nfrom torchsleuth.x import (\n    y,\n)\n\n# why\nA = 1\n'
    )
    assert imports == ["import os", "import re"]
    assert body == "# why\nA = 1"
