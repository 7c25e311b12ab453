"""The capture as a tree, from events: what was inside what, also of a process that died in the middle."""

import json
import re
import xml.etree.ElementTree as xml

import pytest

from torchsleuth.front.cli.trace import Artefact, index_markdown, placed
from torchsleuth.front.observe.events import Event
from torchsleuth.front.observe.trace import Trace, trace_lines, trace_of
from torchsleuth.front.report.drawing import MOST_IN_A_FILE, draw
from torchsleuth.front.report.graph_reading import NotAGraph, read_graph
from torchsleuth.front.report.html import graph_svg
from torchsleuth.front.report.pages import run_page


def event(at, kind, pid=7, **fields):
    return Event(kind, float(at), pid, fields)


def frames_of(events):
    return trace_of(events).frames


def enter(at, number, parent=None, function="step", graph="0/0", attempt=0, pid=7):
    facts = {"file": "/home/me/train.py", "line": 12, "called_from": None if parent is None else 14}
    facts |= {"function": function, "number": number, "parent": parent, "graph": graph, "attempt": attempt}
    return event(at, "trace_enter", pid, **facts)


def leave(at, number, how="returned", instructions=5, pid=7):
    return event(at, "trace_leave", pid, number=number, seconds=0.5, instructions=instructions, how=how)


RESTARTED = [
    enter(1, 1),
    enter(2, 2, parent=1, function="helper"),
    leave(3, 2),
    leave(4, 1, how="started again"),
    enter(5, 3, attempt=1),
    enter(6, 4, parent=3, function="helper", attempt=1),
    leave(7, 4),
    event(
        8,
        "trace_side_effects",
        number=3,
        effects=[{"object": "L['seen']", "kind": "list", "lines": ["a.py:3"]}],
    ),
    event(
        8,
        "trace_side_effects",
        number=3,
        effects=[{"object": "L['seen']", "kind": "list", "lines": ["a.py:3"]}],
    ),
    event(
        9,
        "trace_subgraph",
        number=3,
        why="a print\n  Explanation: x",
        graph_break=True,
        calls=4,
        line=13,
        file="/home/me/train.py",
    ),
    leave(10, 3),
    event(11, "trace_guards", graph="0/0", count=2, guards=[{"kind": "TENSOR_MATCH", "name": "L['x']"}]),
    event(
        12,
        "frame",
        id="0/0",
        function="step",
        file="/home/me/train.py",
        line=12,
        code="step",
        outcome="compiled",
        seconds=2.0,
    ),
]


def test_the_last_attempt_of_a_frame_is_a_tree_of_what_was_inlined_and_what_came_of_it():
    (frame,) = frames_of(RESTARTED)
    assert (frame.function, frame.outcome, len(frame.attempts), frame.guard_count) == (
        "step",
        "compiled",
        2,
        2,
    )
    assert frame.attempts[0].facts["how"] == "started again"
    kinds = [(node.kind, node.facts.get("function")) for node in frame.attempts[1].walk()]
    # What is changed is told once, though torch writes the code for it twice.
    assert kinds == [("call", "step"), ("call", "helper"), ("side effects", None), ("subgraph", None)]
    assert frame.attempts[1].total("instructions") == 10
    words = "\n".join(trace_lines(Trace((frame,))))
    assert (
        "graph break at train.py:13: 4 calls" in words and "a print" in words and "Explanation" not in words
    )
    assert "changes L['seen'] (list) at a.py:3" in words


def test_what_a_killed_process_had_begun_is_told_with_the_function_it_was_in():
    (frame,) = frames_of(RESTARTED[:6])
    assert (frame.function, frame.line, frame.outcome) == ("step", 12, "not ended")
    assert frame.attempts[1].inside[0].facts["how"] == "not ended"


def test_ids_that_torch_uses_again_after_a_reset_are_other_frames():
    again = [event(each.at + 20, each.kind, **each.fields) for each in RESTARTED]
    assert [(frame.graph, len(frame.attempts)) for frame in frames_of([*RESTARTED, *again])] == [
        ("0/0", 2)
    ] * 2


def test_equal_numbers_of_two_processes_do_not_mix():
    frames = frames_of([enter(1, 1), enter(1.5, 1, function="other", pid=8), leave(2, 1), leave(3, 1, pid=8)])
    assert [frame.attempts[0].facts["function"] for frame in frames] == ["step", "other"]


@pytest.mark.parametrize(
    "broken", [{}, {"number": "x", "graph": [], "guards": 3}, {"number": 1, "parent": 1}]
)
def test_events_that_make_no_sense_make_no_error(broken):
    kinds = (
        "trace_enter",
        "trace_leave",
        "trace_subgraph",
        "trace_side_effects",
        "trace_instruction",
        "frame",
    )
    frames = frames_of([event(1, kind, **broken) for kind in kinds])
    list(trace_lines(Trace(frames)))
    run_page("x", {}, {"trace": Trace(frames)})


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_the_page_holds_everything_as_text_that_no_browser_takes_for_markup():
    evil = "</script><script>alert(1)</script><!-- @SCRIPT@ @DATA@"
    (frame,) = frames_of([enter(1, 1, function=evil), leave(2, 1)])
    page = run_page(evil, {}, {"trace": Trace((frame,))})
    assert page.count("<script") == 2 and "alert(1)</script>" not in page
    assert data_of(page)[0]["function"] == evil
    assert "innerHTML" not in page and "http://" not in page and "https://" not in page


def test_files_of_the_debug_folder_are_numbered_in_the_order_of_the_compile():
    stages = [
        "backward-code",
        "forward-code",
        "captured",
        "new-bytecode",
        "forward-graph",
        "backward-graph",
        "bytecode",
    ]
    files = placed(
        [Artefact((7, "0/0", 0), stage, "") for stage in stages], {(7, "0/0", 0): "Model.<locals>.f/../x"}
    )
    assert [each.name for each in files] == [
        "01-bytecode.txt",
        "02-captured.py",
        "03-forward-graph.py",
        "04-forward-code.py",
        "05-backward-graph.py",
        "06-backward-code.py",
        "07-new-bytecode.txt",
    ]
    assert {each.folder for each in files} == {"0_0-Model._locals_.f_.._x"}
    assert "[02-captured.py](0_0-" in index_markdown("t", files, {}, [])


def test_a_graph_is_drawn_with_each_call_below_what_it_takes():
    source = """
class GraphModule(torch.nn.Module):
    def forward(self, x, y):
        a = torch.sin(x);  x = None
        b = torch.ops.aten.add.Tensor(a, y);  a = y = None
        return (b,)
"""
    graph = read_graph(source)
    assert [(call.name, call.op, call.uses) for call in graph.calls] == [
        ("a", "torch.sin", ("x",)),
        ("b", "torch.ops.aten.add.Tensor", ("a", "y")),
    ]
    assert graph.outputs == ("b",)
    drawn = draw(graph, MOST_IN_A_FILE, named=True)
    rows = {box.title: box.y for box in drawn.boxes}
    assert rows["x"] < rows["a = torch.sin"] < rows["b = aten.add.Tensor"] < rows["returned"]
    drawing = xml.fromstring(graph_svg(drawn))
    assert len(drawing.findall(".//{*}path[@marker-end]")) == 4
    for text in ("not python (", "x = 1"):
        with pytest.raises(NotAGraph):
            read_graph(text)
