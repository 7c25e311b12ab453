"""Graphs and small functions read as text, and drawn."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchsleuth.front.report.drawing import MOST_CALLS, TooLarge, draw
from torchsleuth.front.report.graph_reading import Call, Graph, NotAGraph, read_function, read_graph


def test_each_statement_of_a_graph_is_a_call_with_what_it_uses():
    graph = read_graph(
        "class Repro(torch.nn.Module):\n"
        "    def forward(self, x, size):\n"
        "        # m.py:3 in forward: y = x.view(size)\n"
        "        y = x.view(size)  # f32[s0]\n"
        "        z = torch.ops.aten.add_.Tensor(y, 1, size=3)\n"
        "        torch.ops.aten.copy_.default(x, z)\n"
        "        a, b = z[0], -y\n"
        "        return (a, b)\n"
    )
    assert [(c.name, c.op, c.uses) for c in graph.calls] == [
        ("y", ".view", ("x", "size")),
        ("z", "torch.ops.aten.add_.Tensor", ("y",)),
        ("line 6", "torch.ops.aten.copy_.default", ("x", "z")),
        ("a", "tuple", ("z", "y")),
    ]
    assert (
        graph.calls[0].shape == "f32[s0]" and graph.calls[0].place == "m.py:3" and graph.outputs == ("a", "b")
    )


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("for i in x:\n        pass", "for statement"),
        ("return [a for a in x]", "branch or loop"),
        ("if x:\n        pass", "if"),
    ],
)
def test_what_branches_is_not_drawn(body, why):
    with pytest.raises(NotAGraph, match=why):
        read_function(f"def f(x):\n    {body}\n")


@pytest.mark.parametrize("text", ["", "x = 1", "def", "\0", "def f(x):\n    return " + "-" * 100_000 + "x"])
def test_what_is_no_function_is_said_to_be_none(text):
    with pytest.raises(NotAGraph):
        read_function(text)


def test_too_many_calls_are_not_drawn():
    calls = tuple(Call(f"c{n}", "relu") for n in range(MOST_CALLS + 1))
    with pytest.raises(TooLarge):
        draw(Graph((), calls))


@given(st.data(), st.integers(1, 25))
def test_no_boxes_overlap_and_every_line_goes_down(data, count):
    names = ["x", "y"]
    calls = []
    for number in range(count):
        uses = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=3))
        calls.append(
            Call(f"c{number}", data.draw(st.sampled_from(["relu", "@", "scaled_dot_product"])), tuple(uses))
        )
        names.append(f"c{number}")
    drawing = draw(
        Graph(("x", "y"), tuple(calls), tuple(data.draw(st.lists(st.sampled_from(names), max_size=3))))
    )
    rows = {}
    for box in drawing.boxes:
        rows.setdefault(box.y, []).append((box.x - box.width / 2, box.x + box.width / 2))
        assert box.x - box.width / 2 >= 0 and box.x + box.width / 2 <= drawing.width
        assert box.y + box.height <= drawing.height
    for spans in rows.values():
        spans.sort()
        assert all(before[1] < after[0] for before, after in itertools.pairwise(spans))
    for path in drawing.paths:
        start, end = float(path[1:].split("C")[0].split()[1]), float(path.split()[-1])
        assert start < end
