"""Writing scripts: what is pasted stands alone."""

import ast
import runpy
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchsleuth.core.cases.record import AmbientState, CompileSettings, GraphRecord
from torchsleuth.torch_core.repro.script import (
    RUNTIME,
    _runtime,
    one_line,
    runtime_text,
    script_text,
    split_module,
)
from torchsleuth.torch_core.tensors import describe_inputs


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


RECORD = GraphRecord(CompileSettings(level="aot", state=AmbientState()), placeholders=("a",), calls=1)
GRAPH = "class Repro(torch.nn.Module):\n    def forward(self, a):\n        b = torch.relu(a)\n        return (b,)\n"


def test_a_script_of_a_whole_graph_is_short_and_says_what_must_lie_beside_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, RUNTIME.removesuffix(".py"), None)
    script = tmp_path / "original.py"
    text = script_text(RECORD, GRAPH, None, inputs={"inputs": []})
    script.write_text(text)
    assert RUNTIME in text and len(text.splitlines()) < 60
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 3
    assert capsys.readouterr().out.startswith(f"CANNOT TELL: copy {RUNTIME} ")


def test_the_runtime_file_is_a_module_that_runs_such_a_script(tmp_path, monkeypatch, capsys):
    (tmp_path / RUNTIME).write_text(runtime_text())
    script = tmp_path / "original.py"
    script.write_text(script_text(RECORD, GRAPH, None, inputs={"inputs": []}))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    assert "run the graph without compiling it" in capsys.readouterr().out


def test_a_script_of_a_whole_graph_compiles_nothing_where_the_compiler_is_switched_off(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / RUNTIME).write_text(runtime_text())
    script = tmp_path / "original.py"
    given = describe_inputs([torch.ones(2)]).to_json()
    script.write_text(script_text(RECORD, GRAPH, None, inputs=given))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, RUNTIME.removesuffix(".py"), raising=False)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (0, "NOT REPRODUCED\n")
    assert "compiling" not in said.err


def test_a_script_that_is_handed_out_as_one_text_has_the_runtime_in_it():
    text = script_text(RECORD, GRAPH, None, inputs={"inputs": []}, pasted=True)
    assert RUNTIME not in text and "def repro_main(" in text
