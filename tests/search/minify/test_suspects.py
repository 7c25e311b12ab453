"""A wrong result points at the calls that made it, whether it is returned or written into an input."""

import torch

from made_graphs import aten, traced
from torchsleuth.core.protocol.trials import Outcome
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.minify.contract import Oracle
from torchsleuth.search.minify.driver import search
from torchsleuth.search.minify.oracle import TrialOracle
from torchsleuth.torch_core.graphs.cut import calls_of

WRONG = Signature("accuracy", "run")


def suspects(state, *paths):
    oracle = TrialOracle(None, WRONG, None)
    oracle.judge(Outcome(Signature("accuracy", "run", outputs=paths), 0.1), state)
    return oracle.suspects


def test_outputs_and_changed_inputs_lead_to_their_calls():
    def program(x, buffer):
        y = aten.sin.default(x)
        aten.copy_.default(buffer, y)
        return (y, aten.cos.default(y))

    state = traced(program, torch.ones(2), torch.ones(2))
    assert suspects(state, "outputs[1]") == ("cos_default",)
    assert suspects(state, "inputs[1] (mutated)") == ("copy__default",)
    assert suspects(state, "outputs[0]", "inputs[1] (mutated)") == ("sin_default", "copy__default")
    assert suspects(state, "outputs[7]", "inputs[0] (mutated)") == ()


class WrongErf(Oracle):
    """Says which results are wrong because of `erf`, as they are lowered; keeps what it was asked."""

    names_outputs = True

    def __init__(self):
        self.asked = []

    def __call__(self, states):
        self.asked += states
        return [self._wrong(state) for state in states]

    def _wrong(self, state):
        tainted = set()
        for each in state.graph.graph.nodes:
            if each.target is aten.erf.default or tainted.intersection(each.all_input_nodes):
                tainted.add(each)
        outputs = state.graph.graph.output_node().args[0]
        wrong = [each.name for each in outputs if each in tainted]
        if wrong:
            self.suspects = wrong
        return bool(wrong)


def test_of_a_large_graph_only_the_neighbourhood_of_the_first_wrong_value_is_compiled():
    def program(x):
        for step in range(60):
            x = aten.erf.default(x) if step == 33 else aten.add.Tensor(aten.sin.default(x), step)
        return (x,)

    oracle = WrongErf()
    found = search(traced(program, torch.ones(2)), oracle, calls_only=True)
    assert [n.target for n in found.state.graph.graph.nodes if n.op == "call_function"] == [aten.erf.default]
    # And once all of it but what was found.
    assert [calls_of(state.graph) for state in oracle.asked if not state.interpreted] == [1, 52]


def test_what_an_analysis_names_is_asked_first_and_by_itself():
    def program(x):
        for step in range(60):
            x = aten.erf.default(x) if step == 33 else aten.add.Tensor(aten.sin.default(x), step)
        return (x,)

    oracle = WrongErf()
    found = search(traced(program, torch.ones(2)), oracle, seeds=["erf_default"], calls_only=True)
    assert calls_of(found.state.graph) == 1
    assert [calls_of(state.graph) for state in oracle.asked] == [1, 52]
