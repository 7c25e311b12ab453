"""A node knows the user's line and module it came from, forward and backward."""

from pathlib import Path

import pytest
import torch
from captured import capture
from programs import graphs_of

import torchsleuth
from torchsleuth.torch_core.graphs.provenance import calling_line, source_line, user_lines


def node_with(trace, **meta):
    node = torch.fx.Graph().placeholder("x")
    node.meta.update(stack_trace=trace, **meta)
    return node


def frame(file, line, function="forward", code="x = f(x)"):
    return f'  File "{file}", line {line}, in {function}\n    {code}\n         ^^^^\n'


TORCH = torch.nn.functional.__file__
LIBRARY = "/venv/lib/python3.11/site-packages/transformers/models/llama.py"


def test_the_innermost_frame_of_the_user_is_chosen():
    trace = frame("/home/me/train.py", 3) + frame("/home/me/model.py", 84, code="x = g(x)") + frame(TORCH, 9)
    line = source_line(node_with(trace))
    assert (line.place, line.function, line.code) == ("model.py:84", "forward", "x = g(x)")


def test_the_users_frame_wins_over_a_librarys_inside_it():
    assert source_line(node_with(frame("/home/me/train.py", 3) + frame(LIBRARY, 7))).place == "train.py:3"


def test_a_library_model_is_blamed_where_no_frame_is_the_users():
    assert (
        source_line(node_with(frame(LIBRARY, 6) + frame(LIBRARY, 7) + frame(TORCH, 1))).place == "llama.py:7"
    )


def test_a_frame_without_code_is_read():
    trace = '  File "/home/me/a.py", line 1, in f\n  File "/home/me/b.py", line 2, in g\n    y = 1\n'
    assert source_line(node_with(trace)).place == "b.py:2"


@pytest.mark.parametrize("trace", ["", "no frames here", frame(TORCH, 5), frame("<eval_with_key>.3", 5)])
def test_nothing_is_invented(trace):
    assert source_line(node_with(trace)) is None


@pytest.mark.parametrize(
    "spelled, path",
    [
        ("L['self'].encoder.layers.3.mlp", "encoder.layers.3.mlp"),
        ("L['self']._modules['encoder']._modules['layers']._modules['3']", "encoder.layers.3"),
        ("L['self'].encoder.layers[3].mlp", "encoder.layers.3.mlp"),
        ("getattr(L['self'].layers, '0')", "layers.0"),
        ("L['model']", ""),
        ("self.head", "head"),
        ("", ""),
    ],
)
def test_module_paths_are_cleaned_of_dynamos_spelling(spelled, path):
    node = node_with(frame("/home/me/model.py", 1), nn_module_stack={"0": (spelled, object)})
    assert source_line(node).module == path


def test_backward_nodes_name_the_forward_line_and_module():
    backward = next(graph for graph in graphs_of("net") if graph.level == "backward").gm
    lines = {node.name: source_line(node) for node in backward.graph.nodes if node.op == "call_function"}
    assert all(line is not None and line.file.endswith("programs.py") for line in lines.values())
    assert {line.module for line in lines.values()} == {"first", "second", "drop", ""}


def test_the_users_lines_of_a_graph_are_listed_once_in_order():
    class Deep(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(2)])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return torch.relu(x)

    gm = capture(Deep(), torch.ones(1, 2))[0].gm
    first, second = user_lines(gm)
    assert int(second.split(":")[1]) == int(first.split(":")[1]) + 1
    modules = [source_line(node).module for node in gm.graph.nodes if node.op == "call_function"]
    assert modules == ["layers.0", "layers.1", ""]


def test_frames_of_ours_are_not_the_users():
    ours = str(Path(torchsleuth.__file__).parent / "watched" / "made_up.py")
    scope = {"calling_line": calling_line}
    exec(compile("def ask():\n    return calling_line()", ours, "exec"), scope)
    assert scope["ask"]().file == __file__
