"""The rung that fails names the component; below Inductor, what of AOTAutograd it is."""

import torch

from torchsleuth.core.change_table import AOT, DECOMPOSED
from torchsleuth.core.criteria import SAME_BUG, Answer
from torchsleuth.core.protocol.trials import Outcome, Seen
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.blame.ladder import _stage, climb
from torchsleuth.search.blame.runner import Result
from torchsleuth.search.minify.states import state_of
from torchsleuth.search.minify.subsets import smallest
from torchsleuth.torch_internals.compiler_switches import IN_PYTHON

WRONG = Signature("accuracy", "run", outputs=("outputs[0]",))


class Runner:
    """Answers experiments by a function, and remembers them."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    def ask(self, state, experiments):
        self.asked += experiments
        return [self.answer(experiment) for experiment in experiments]

    def one(self, state, experiment):
        return self.ask(state, [experiment])[0]

    def smallest_cure(self, state, items, without):
        return smallest(items, lambda sets: [self.one(state, without(some)).passes for some in sets])


def result(experiment, fails, **applied):
    answer = Answer.FAILS if fails else Answer.PASSES
    return Result(experiment, answer, Outcome(WRONG if fails else None, 0.1, seen=Seen(applied=applied)))


def captured():
    def f(x):
        return torch.nn.functional.interpolate(torch.relu(x), scale_factor=1.3)

    gm = torch.fx.symbolic_trace(f)
    return state_of(gm, [torch.ones(1, 1, 1, 2)]).setting(level="dynamo")


def test_a_wrong_decomposition_in_python_is_named_with_its_place_and_its_node():
    guilty = "aten.upsample_nearest2d"

    def answer(experiment):
        window = experiment.off.get(IN_PYTHON)
        cured = window is not None and ("names" not in window or guilty in window["names"])
        return result(experiment, not cured, **{IN_PYTHON: ["aten.dropout", guilty, guilty]})

    found = climb(Runner(answer), captured())
    assert (found.component, found.part) == ("aot_autograd", "decomposition of upsample_nearest2d")
    assert found.ops == (guilty,) and found.pinned and found.subsystem == IN_PYTHON
    assert "torch/_decomp/decompositions.py:" in found.detail and "aot_eager" in found.detail


def test_what_fails_in_another_way_with_eager_kernels_is_not_the_backends():
    other = Signature("runtime_error", "run", ("RuntimeError",), "Cannot access data pointer")

    def answer(experiment):
        if experiment.backend == AOT.backend:
            return Result(experiment, Answer.OTHER, Outcome(other, 0.1))
        return result(experiment, fails=False)

    found = climb(Runner(answer), captured())
    assert found.component == "aot_autograd" and "in another way: " in found.detail


def test_a_gradient_that_eager_kernels_lose_in_another_place_is_not_the_backends():
    lost = Signature(
        "runtime_error",
        "run",
        ("RuntimeError",),
        "element # of tensors does not require grad and does not have a grad_fn",
    )
    wrong = Signature("accuracy", "run", outputs=("gradients[0]",))

    def answer(experiment):
        seen = (
            lost
            if experiment.backend == DECOMPOSED.backend
            else None
            if experiment.backend == AOT.backend
            else wrong
        )
        return Result(experiment, SAME_BUG.answer(wrong, seen), Outcome(seen, 0.1))

    found = climb(Runner(answer), captured())
    assert (found.component, found.part) == ("aot_autograd", "partitioner")


def test_the_stage_of_aot_autograd_is_read_off_the_traceback():
    state = captured()
    joint = 'File "torch/_functorch/_aot_autograd/graph_capture.py" ...\nin _engine_run_backward'
    assert _stage(state, joint).startswith("joint graph")
    assert _stage(state, "torch/_functorch/partitioners.py") == "partitioner"
    assert _stage(state, "") == "functionalization"
