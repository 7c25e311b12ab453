"""What a search that ran out of time has left is not claimed to be what matters."""

import torch

from torchsleuth.cases.record import CompileSettings, Embedded
from torchsleuth.minify.states import state_of
from torchsleuth.triage.finding import Finding
from torchsleuth.triage.triage_case import CALLS_LEFT, _component, _with_calls


def calls_of_three():
    gm = torch.fx.symbolic_trace(lambda x: torch.relu(torch.cos(torch.sin(x))))
    return state_of(gm, [torch.ones(2)])


def test_calls_that_are_left_when_the_time_is_up_are_named_but_not_pinned_down():
    found = Finding("inductor", "lowering", "it passes without lowerings", True)
    late = _with_calls(calls_of_three(), found, unclear=CALLS_LEFT)
    assert len(late.ops) == 3 and not late.pinned
    assert "it passes without lowerings" in late.detail and "--budget" in late.detail
    assert _with_calls(calls_of_three(), found, unclear=None).pinned


def test_a_part_that_names_its_operator_needs_no_fewer_calls():
    found = Finding("inductor", "lowering", None, True, ops=("aten.cos.default",), nodes=("cos",))
    assert _with_calls(calls_of_three(), found, unclear=CALLS_LEFT).pinned


def test_a_compiler_of_the_users_own_is_at_fault_for_a_graph_that_only_it_was_handed():
    settings = CompileSettings("aot", "mine")
    state = calls_of_three().having(settings=settings, embedded=Embedded("def backend(gm, inputs): ..."))
    assert _component(None, state, None) == Finding("backend", "mine", pinned=True)
