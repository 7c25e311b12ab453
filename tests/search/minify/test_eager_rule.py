"""Where the original passes without the compiler, a smaller graph that fails there as well is another bug."""

import pytest
import torch

from torchsleuth.core.cases.record import AmbientState, CompileSettings, Embedded
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.minify.oracle import TrialOracle
from torchsleuth.search.minify.states import Questions, state_of
from trials_here import TrialsHere

# A compiler that loses the second argument of `view`, and so fails with the words in which eager refuses other calls.
BACKEND = """
def backend(graph, inputs):
    for node in graph.graph.nodes:
        if node.target == "view":
            raise RuntimeError("shape '[7]' is invalid for input of size 6")
    return graph.forward
"""
LOST = Signature("compile_error", "compile", ("RuntimeError",), "shape '[#]' is invalid for input of size #")


def state(function):
    settings = CompileSettings(backend="backend", state=AmbientState(grad=False))
    made = state_of(torch.fx.symbolic_trace(function), [torch.ones(6)])
    return made.having(settings=settings, embedded=Embedded(BACKEND), any_values=True)


ORIGINAL = state(lambda x: (x.view(2, 3).sin(),))
SMALLER = state(lambda x: (x.view(7),))


@pytest.fixture
def oracle(tmp_path):
    return TrialOracle(Questions(TrialsHere(), tmp_path), LOST)


def test_a_candidate_that_eager_refuses_with_the_same_words_is_not_the_failure(oracle):
    assert oracle.each([ORIGINAL, SMALLER]) == [True, True]
    assert oracle.holding_to(ORIGINAL).each([ORIGINAL, SMALLER]) == [True, False]
    assert not oracle.also, "a graph that does not run at all is no other bug of the compiler's"


def test_an_original_that_eager_refuses_can_be_held_to_nothing(oracle):
    assert oracle.holding_to(SMALLER).each([SMALLER]) == [True]


def test_a_wrong_result_is_compared_with_eager_anyway_so_nothing_more_is_asked(tmp_path):
    workers = TrialsHere()
    wrong = TrialOracle(Questions(workers, tmp_path), Signature("accuracy", "run"))
    assert not wrong.holding_to(ORIGINAL).must_pass_in_eager
    assert not workers.trials


def test_modes_that_a_failed_compile_leaves_behind_are_not_held_against_the_graph(tmp_path):
    leaves_a_mode = "import torch\n" + BACKEND.replace(
        "    for", "    torch.set_default_device('meta')\n    for"
    )
    made = state(lambda x: (x.view(2, 3) + torch.ones(2, 3),)).having(embedded=Embedded(leaves_a_mode))
    try:
        held = TrialOracle(Questions(TrialsHere(), tmp_path), LOST).holding_to(made)
        assert held.must_pass_in_eager and held.each([made]) == [True]
    finally:
        torch.set_default_device(None)
