"""The reader stands alone: its own text, pasted into a script, is all a printed graph needs besides torch."""

import ast
import inspect
import subprocess
import sys

import pytest
import torch
from programs import graphs_of

from torchsleuth.script_runtime import reader
from torchsleuth.script_runtime.reader import read_graph
from torchsleuth.torch_core.graphs.printer import print_graph

CHECK = """
graph = read_graph(SOURCE)
x = torch.ones(3, 4)
assert torch.equal(graph(x)[0], Repro()(x)[0])
print(sum(node.op == "call_function" for node in graph.graph.nodes), "torchsleuth" in __import__("sys").modules)
"""


def test_the_readers_text_is_embeddable():
    text = inspect.getsource(reader)
    assert len(text.splitlines()) < 150
    tree = ast.parse(text)
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    kernels = (
        "torch._higher_order_ops.triton_kernel_wrap"  # imported by graphs that call the user's Triton kernels
    )
    assert imported <= {"ast", "math", "operator", "torch", "torch.fx", "collections.abc", "typing", kernels}
    defined = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    assert all(name == "read_graph" or name.startswith("_graph_") for name in defined)


def test_a_script_of_reader_and_graph_runs_without_torchsleuth(tmp_path):
    printed = print_graph(next(graph for graph in graphs_of("cond") if graph.level == "inference").gm)
    script = tmp_path / "repro.py"
    script.write_text(f"{inspect.getsource(reader)}\n{printed.text}\nSOURCE = {printed.source!r}\n{CHECK}")
    done = subprocess.run([sys.executable, "-P", str(script)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, ["4", "False"]), done.stderr


def test_a_missing_constant_says_its_name():
    graph = torch.fx.Graph()
    graph.output(graph.get_attr("big"))
    root = torch.nn.Module()
    root.big = torch.ones(100)
    printed = print_graph(torch.fx.GraphModule(root, graph))
    with pytest.raises(NameError, match="constant"):
        read_graph(printed.source)
