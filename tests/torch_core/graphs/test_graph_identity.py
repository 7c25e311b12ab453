"""Two compilations of one program share a structural hash; two programs do not."""

import os
import subprocess
import sys

import torch
from captured import capture
from programs import PROGRAMS, graphs_of
from same_graph import same_graph

from torchsleuth.script_runtime.reader import read_graph
from torchsleuth.torch_core.graphs.printer import print_graph, structural_hash

HASHER = """
import operator, torch
from torchsleuth.torch_core.graphs.printer import structural_hash
graph = torch.fx.Graph()
x = graph.placeholder("x")
graph.output((graph.call_function(torch.relu, (graph.call_function(operator.add, (x, 1)),)),))
print(structural_hash(torch.fx.GraphModule(torch.nn.Module(), graph)))
"""


def small(target=torch.relu, number=1, name="x"):
    graph = torch.fx.Graph()
    x = graph.placeholder(name)
    graph.output((graph.call_function(target, (x, number)),))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def test_names_do_not_matter():
    assert same_graph(small(name="x"), small(name="other")) is None
    assert structural_hash(small(name="x")) == structural_hash(small(name="other"))


def test_numbers_matter_to_equality_but_not_to_the_hash():
    assert "other arguments" in same_graph(small(number=1), small(number=2))
    assert structural_hash(small(number=1)) == structural_hash(small(number=2))
    assert structural_hash(small(number=1)) != structural_hash(small(number=1.0))


def test_true_is_not_one_and_minus_zero_is_not_zero():
    assert same_graph(small(number=1), small(number=True)) is not None
    assert same_graph(small(number=0.0), small(number=-0.0)) is not None
    assert same_graph(small(number=float("nan")), small(number=float("nan"))) is None


def test_a_call_before_the_inputs_is_the_same_as_one_after_them():
    graph = torch.fx.Graph()
    ones = graph.call_function(torch.ones, (2,))
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.add, (x, ones)))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    again = read_graph(print_graph(gm).source)
    assert same_graph(gm, again) is None and structural_hash(gm) == structural_hash(again)


def test_another_function_is_named():
    assert "relu" in same_graph(small(), small(torch.sin))
    assert structural_hash(small()) != structural_hash(small(torch.sin))


def test_a_recompilation_at_another_size_has_the_same_hash():
    net = PROGRAMS["net"]()[0]
    hashes = [
        [structural_hash(c.gm) for c in capture(net, torch.ones(size, 4), dynamic=False)] for size in (2, 9)
    ]
    assert hashes[0] == hashes[1]


def test_different_programs_have_different_hashes():
    levels = [captured.gm for name in ("net", "cond", "scan", "sizes") for captured in graphs_of(name)]
    assert len({structural_hash(gm) for gm in levels}) == len(levels)


def test_a_difference_inside_a_nested_graph_is_found():
    first = next(graph for graph in graphs_of("cond") if graph.level == "dynamo").gm
    second = capture(
        lambda x: torch.cond(
            x.sum() > 0, lambda a: a.sin(), lambda a: a.tan() + torch.tensor([1.0, 2.0]).sum(), (x,)
        ),
        torch.ones(3, 4),
    )[0].gm
    assert "cos" in same_graph(first, second)
    assert structural_hash(first) != structural_hash(second)


def test_the_hash_is_the_same_in_every_process():
    seen = {
        subprocess.run(
            [sys.executable, "-c", HASHER],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1
