"""What a search that ran out of time has left is not claimed to be what matters."""

from dataclasses import replace
from types import SimpleNamespace

import torch

from made import make
from torchsleuth.core.cases.model import Triage
from torchsleuth.core.cases.record import CompileSettings, Embedded, GraphRecord
from torchsleuth.search.blame.triage_case import CALLS_LEFT, _Blame, _component, _with_calls
from torchsleuth.search.minify.states import state_of
from torchsleuth.torch_core.graphs.source_line import SourceLine


def calls_of_three():
    gm = torch.fx.symbolic_trace(lambda x: torch.relu(torch.cos(torch.sin(x))))
    return state_of(gm, [torch.ones(2)])


def test_calls_that_are_left_when_the_time_is_up_are_named_but_not_pinned_down():
    found = Triage("inductor", "lowering", detail="it passes without lowerings", pinned=True)
    late = _with_calls(calls_of_three(), found, unclear=CALLS_LEFT)
    assert len(late.ops) == 3 and not late.pinned
    assert "it passes without lowerings" in late.detail and "--budget" in late.detail
    assert _with_calls(calls_of_three(), found, unclear=None).pinned


def test_a_part_that_names_its_operator_needs_no_fewer_calls():
    found = Triage("inductor", "lowering", pinned=True, ops=("aten.cos.default",), nodes=("cos",))
    assert _with_calls(calls_of_three(), found, unclear=CALLS_LEFT).pinned


def test_a_compiler_of_the_users_own_is_at_fault_for_a_graph_that_only_it_was_handed():
    settings = CompileSettings("aot", "mine")
    state = calls_of_three().having(settings=settings, embedded=Embedded("def backend(gm, inputs): ..."))
    assert _component(None, state, None) == Triage("backend", "mine", pinned=True)


def test_where_many_lines_are_left_none_is_shown_and_the_reason_is():
    lines = {
        name: SourceLine("/home/me/m.py", number) for number, name in enumerate(["sin", "cos", "relu"], 1)
    }
    start = SimpleNamespace(record=GraphRecord(CompileSettings("aot"), nodes=lines), state=calls_of_three())
    blame = _Blame(make(), start, SimpleNamespace(log=[]), unclear=CALLS_LEFT)
    left = Triage("inductor", "fusion", nodes=("sin", "cos", "relu"))
    unclear = blame.written(left, 1.0)
    assert unclear.user_line is None
    assert (
        unclear.not_narrowed.startswith("not narrowed: 3 lines are left")
        and "--budget" in unclear.not_narrowed
    )
    clear = replace(blame, unclear=None).written(left, 1.0)
    assert (clear.user_line, clear.not_narrowed) == ("m.py:3", None)
    one_line = blame.written(replace(left, nodes=("cos",)), 1.0)
    assert one_line.user_line == "m.py:2"
    nowhere = blame.written(Triage("inductor", nodes=("expand",)), 1.0)
    assert nowhere.user_line is None and nowhere.not_narrowed.startswith("no line of the program")


def test_the_lines_that_make_what_fails_are_shown_beside_the_one_where_it_shows():
    code = {
        "sin": "scores = q @ k.permute(0, 2, 3, 1)",
        "cos": "scores = scores / 8",
        "relu": "return scores",
    }
    lines = {
        name: SourceLine("/home/me/m.py", n, code=text) for n, (name, text) in enumerate(code.items(), 1)
    }
    start = SimpleNamespace(record=GraphRecord(CompileSettings("aot"), nodes=lines), state=calls_of_three())
    few = _Blame(make(), start, SimpleNamespace(log=[]), left=("sin", "relu"), fewest=True)
    found = Triage("inductor", "fuse_attention")
    triage = few.written(found, 1.0)
    assert (triage.user_line, triage.with_lines) == (
        "m.py:3",
        ("m.py:1: scores = q @ k.permute(0, 2, 3, 1)",),
    )
    assert replace(few, fewest=False).written(found, 1.0).with_lines == (), "not all of these may be needed"
