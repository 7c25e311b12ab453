"""A wrong result points at the calls that made it, whether it is returned or written into an input."""

import torch
from made_graphs import aten, traced

from torchsleuth.minify.oracle import TrialOracle
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.trials.trial import Outcome

WRONG = Signature("accuracy", "run")


def suspects(state, *paths):
    oracle = TrialOracle(None, WRONG, None)
    oracle._judge(Outcome(Signature("accuracy", "run", outputs=paths), 0.1), state)
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
