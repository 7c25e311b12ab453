"""The ladder: the captured graph run by more and more of the compiler; the first rung that fails names the component.

A rung is one experiment. Only graphs cut after Dynamo climb it: one cut after AOTAutograd has left the lower rungs
behind when it fails by itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchsleuth.core.cases.model import Triage
from torchsleuth.core.change_table import (
    AOT,
    DECOMPOSED,
    FAKE_KERNELS,
    SCHEMAS,
    few,
    least_that_fails,
    without_decompositions,
    without_python_decompositions,
)
from torchsleuth.core.changes import Change
from torchsleuth.core.criteria import Answer
from torchsleuth.search.blame.runner import Result, Runner, blamed
from torchsleuth.search.minify.contract import State
from torchsleuth.torch_internals.compiler_switches import IN_PYTHON
from torchsleuth.torch_internals.decompositions import where_registered
from torchsleuth.torch_internals.operators import TORCH_NAMESPACES, short_name

# What a traceback shows of a stage of AOTAutograd, the innermost first.
_STAGES = (
    ("in _engine_run_backward", "joint graph: the backward is traced together with the forward"),
    ("/partitioners.py", "partitioner"),
    ("/_aot_autograd/collect_metadata_analysis.py", "metadata analysis"),
    ("/_aot_autograd/graph_capture.py", "tracing"),
    ("/_aot_autograd/runtime_wrappers.py", "runtime wrappers"),
)
# A check found an operator that does not do what it says of itself.
_MISMATCH = re.compile(r"(?:FakeMismatch|SchemaMismatch): ([\w.:]+)(?: \([^)]*\))?: (.+)")


def climb(runner: Runner, state: State) -> Triage:
    """The component at fault in a graph that Dynamo captured: `climb(runner, state).component`."""
    backend = state.settings.backend
    rungs = [AOT, DECOMPOSED] if backend == "inductor" else [AOT]
    below = dict(zip(rungs, runner.ask(state, rungs)))

    def answer(rung: Change) -> Answer:
        # What fails in another way as soon as AOTAutograd traces is not the backend's, either.
        said = below[rung].answer
        return Answer.FAILS if rung is AOT and said is Answer.OTHER else said

    failing = least_that_fails(rungs, answer)
    if failing is not None:
        rung, _ = failing
        return (_before_the_backend if rung is AOT else _decomposition)(runner, state, below[rung])
    found = misbehaving_operator(runner, state) if has_custom_operator(state) else None
    if found is not None:
        return found
    if backend == "inductor":
        return Triage("inductor")
    return Triage("backend", backend, pinned=True, detail=f"only the backend {backend} fails on this graph")


def _before_the_backend(runner: Runner, state: State, failed: Result) -> Triage:
    """What fails while AOTAutograd traces: a decomposition in Python, an operator that is wrong about itself, or it."""
    used = list(dict.fromkeys(failed.applied(IN_PYTHON)))
    if used and runner.one(state, without_python_decompositions()).passes:
        guilty = runner.smallest_cure(state, used, without_python_decompositions)
        places = " and ".join(f"{name} ({where_registered(name)})" for name in guilty)
        why = (
            f"it passes without the decomposition of {places}; torch registers it as a kernel in Python, so that "
            "every backend gets it, aot_eager as well"
        )
        nodes = _nodes_calling(state, [name.removeprefix("aten.") for name in guilty])
        return blamed(without_python_decompositions(guilty), why, ops=guilty, nodes=nodes)
    found = misbehaving_operator(runner, state)
    if found is not None:
        return found
    summary = failed.outcome.signature.summary if failed.outcome.signature else "it fails"
    said = "it fails with eager kernels already" + ("" if failed.fails else f", in another way: {summary}")
    return Triage(AOT.component, _stage(state, failed.outcome.text), detail=said, pinned=True)


def _nodes_calling(state: State, names: Sequence[str]) -> tuple[str, ...]:
    """The one call of the graph whose name is, or begins as, that of an operator; none where that is not clear."""
    calls = [n for n in state.graph.graph.nodes if n.op.startswith("call_")]
    found = [n.name for n in calls if any(short_name(n.target) in name for name in names)]
    return tuple(found) if len(found) == 1 else ()


def _stage(state: State, text: str) -> str:
    """Where in AOTAutograd it failed, by the traceback; and the mode that the calls that are left switch on."""
    stage = next((name for mark, name in _STAGES if mark in text), "functionalization")
    modes = [
        short_name(n.target).removeprefix("_enter_").replace("_", " ")
        for n in state.graph.graph.nodes
        if n.op == "call_function" and short_name(n.target).startswith("_enter_")
    ]
    return f"{stage} under {modes[0]}" if modes else stage


def has_custom_operator(state: State) -> bool:
    """Whether the graph calls an operator that is not torch's own."""
    names = {
        str(node.target)
        for part in state.graph.modules()
        if hasattr(part, "graph")
        for node in part.graph.nodes
        if node.op == "call_function" and hasattr(node.target, "namespace")
    }
    return any(name.split(".")[0].split("::")[0] not in TORCH_NAMESPACES for name in names)


def misbehaving_operator(runner: Runner, state: State) -> Triage | None:
    """An operator whose fake kernel or schema does not say what the real one does, where there is one."""
    for result in runner.ask(state, [FAKE_KERNELS, SCHEMAS]):
        match = _MISMATCH.search(result.outcome.text)
        if match is not None:
            check = FAKE_KERNELS if "FakeMismatch" in match[0] else SCHEMAS
            return blamed(check, f"{match[1]}: {match[2]}"[:300], ops=(match[1].replace("::", "."),))
    return None


def _decomposition(runner: Runner, state: State, failed: Result) -> Triage:
    """Which decomposition it is, or the partitioner where none of them is."""
    names = list(dict.fromkeys(failed.applied("decomposition")))
    if not names or not runner.one(state, without_decompositions(names)).passes:
        return Triage("aot_autograd", "partitioner", detail="it fails with any decomposition left out")
    guilty = runner.smallest_cure(state, names, without_decompositions)
    return blamed(
        without_decompositions(guilty),
        f"it passes without the decomposition of {few(guilty)}",
        ops=guilty,
        application=failed.applied("decomposition").index(guilty[0]) + 1,
    )
