"""Every `>>>` example in the source is run, and says what really comes out."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest
import torch

import torchsleuth
from made import make
from torchsleuth.script_runtime.reader import read_graph
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.minify.states import state_of
from torchsleuth.torch_core.graphs.printer import print_graph
from torchsleuth.torch_core.graphs.recording import record_values
from torchsleuth.torch_core.tensors import describe_inputs, describe_tensor


def modules():
    """The names of all modules of torchsleuth; `__main__` would run."""
    found = pkgutil.walk_packages(torchsleuth.__path__, "torchsleuth.")
    return [each.name for each in found if each.name != "torchsleuth.__main__"]


def namespace(module):
    """What an example may use without saying so: its own module, a small graph, state and case, and what makes such."""
    x = torch.tensor([-1.0, 2.0])
    gm = captured(x)
    (node,) = gm.graph.find_nodes(op="call_function", target=torch.relu)
    given = {"torch": torch, "Path": Path, "gm": gm, "node": node, "x": x}
    given |= {"state": state_of(gm, [x]), "case": make()}
    makers = (print_graph, read_graph, record_values, describe_inputs, describe_tensor, state_of, Signature)
    return {**{each.__name__: each for each in makers}, **vars(module), **given}


def captured(x):
    """relu(x) as Dynamo captures it in line 84 of a model: a placeholder, one call, a tuple as the result."""
    graph = torch.fx.Graph()
    relu = graph.call_function(torch.relu, (graph.placeholder("x"),))
    relu.meta = {
        "example_value": x,
        "stack_trace": '  File "/home/me/model.py", line 84, in forward\n    x = torch.relu(x)\n',
        "nn_module_stack": {"relu": ("L['self'].encoder.layers.3", torch.nn.ReLU)},
        "source_fn_stack": [("relu", torch.nn.ReLU)],
    }
    graph.output((relu,))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def examples(name):
    module = importlib.import_module(name)
    found = doctest.DocTestFinder(exclude_empty=True).find(module, name, module=module)
    return [(test, namespace(module)) for test in found if test.examples]


@pytest.mark.parametrize("name", modules())
def test_the_examples_of_a_module_say_what_comes_out(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = Path(importlib.util.find_spec(name).origin).read_text(encoding="utf-8")
    if ">>>" not in source:
        return
    told = []
    runner = doctest.DocTestRunner(verbose=False)
    tests = examples(name)
    for test, names in tests:
        test.globs.clear()
        test.globs.update(names)
        runner.run(test, out=told.append)
    written = sum(line.strip().startswith(">>>") for line in source.splitlines())
    assert written == sum(len(test.examples) for test, _ in tests), (
        "an example is where doctest does not look"
    )
    assert not told, "".join(told)
