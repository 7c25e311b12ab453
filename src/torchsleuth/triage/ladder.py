"""The ladder: the captured graph run by more and more of the compiler; the first rung that fails names the component.

A rung is one experiment. Only graphs cut after Dynamo climb it: one cut after AOTAutograd has left the lower rungs
behind when it fails by itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchsleuth.minify.search.contract import State
from torchsleuth.triage.experiments import Experiment, ExperimentRunner, Result, few
from torchsleuth.triage.finding import Finding

EAGER = "sleuth_eager"
AOT = "sleuth_aot_eager"
DECOMPOSED = "sleuth_aot_eager_decomp_partition"
CROSSREF = "sleuth_aot_eager_decomp_partition_crossref"
SCHEMA = "sleuth_eager_debug"
# Namespaces of operators.
_TORCHS_OWN = {
    "aten",
    "prims",
    "inductor",
    "higher_order",
    "rngprims",
    "quantized",
    "mkldnn",
    "_c10d_functional",
}
# A check found an operator that does not do what it says of itself.
_MISMATCH = re.compile(r"(?:FakeMismatch|SchemaMismatch): ([\w.:]+)(?: \([^)]*\))?: (.+)")


def climb(runner: ExperimentRunner, state: State) -> Finding:
    """The component at fault in a graph that Dynamo captured: `climb(runner, state).component`."""
    backend = state.settings.backend
    inductor = backend == "inductor"
    rungs = [Experiment("AOTAutograd with eager kernels", backend=AOT)]
    if inductor:
        rungs.append(
            Experiment("AOTAutograd, decompositions and partitioner, with eager kernels", backend=DECOMPOSED)
        )
    below = runner.ask(state, rungs)
    if below[0].fails:
        return misbehaving_operator(runner, state) or Finding(
            "aot_autograd", "functionalization", pinned=True
        )
    if inductor and below[1].fails:
        return _decomposition(runner, state, below[1])
    found = misbehaving_operator(runner, state) if has_custom_operator(state) else None
    if found is not None:
        return found
    if inductor:
        return Finding("inductor")
    return Finding("backend", backend, pinned=True, detail=f"only the backend {backend} fails on this graph")


def has_custom_operator(state: State) -> bool:
    """Whether the graph calls an operator that is not torch's own."""
    names = {
        str(node.target)
        for part in state.graph.modules()
        if hasattr(part, "graph")
        for node in part.graph.nodes
        if node.op == "call_function" and hasattr(node.target, "namespace")
    }
    return any(name.split(".")[0].split("::")[0] not in _TORCHS_OWN for name in names)


def misbehaving_operator(runner: ExperimentRunner, state: State) -> Finding | None:
    """An operator whose fake kernel or schema does not say what the real one does, where there is one."""
    checks = [
        Experiment("fake kernels checked against real ones", backend=CROSSREF),
        Experiment("operators checked against their schemas", backend=SCHEMA),
    ]
    for result in runner.ask(state, checks):
        match = _MISMATCH.search(result.outcome.text)
        if match is not None:
            part = "fake kernel" if "FakeMismatch" in match[0] else "operator schema"
            return Finding("aot_autograd", part, f"{match[1]}: {match[2]}"[:300], True, (_dotted(match[1]),))
    return None


def _dotted(op: str) -> str:
    return op.replace("::", ".")


def _decomposition(runner: ExperimentRunner, state: State, failed: Result) -> Finding:
    """Which decomposition it is, or the partitioner where none of them is."""
    names = list(dict.fromkeys(failed.applied("decomposition")))

    def without(some: Sequence[str]) -> Experiment:
        off = {"decomposition": {"names": list(some)}}
        return Experiment(f"without the decomposition of {few(some)}", off=off, backend=DECOMPOSED)

    if not names or not runner.one(state, without(names)).passes:
        return Finding(
            "aot_autograd", "partitioner", detail="it fails with any decomposition left out", pinned=False
        )
    guilty = runner.smallest_cure(state, names, without)
    return Finding(
        "decompositions",
        "decomposition",
        f"it passes without the decomposition of {few(guilty)}",
        True,
        tuple(guilty),
        subsystem="decomposition",
        application=failed.applied("decomposition").index(guilty[0]) + 1,
    )
