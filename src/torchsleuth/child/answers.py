"""Everything a trial child can be asked, by the name of the question; each child answers one.

"fails" is the question of a search. The others are what a search has to know and may not find out itself, because
finding out can end the process: eager values, rounding noise, shapes, the user's definitions, a stranger's script.
Their answers are in `Outcome.value`; a signature says that the process failed at it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch

from torchsleuth.child.compile import fastest, namespace_of, noise_of, ready_trial, run_trial
from torchsleuth.child.program import run_program
from torchsleuth.core.protocol.trials import Outcome, Question, Trial
from torchsleuth.script_runtime.inputs import load_inputs
from torchsleuth.script_runtime.reader import read_graph
from torchsleuth.script_runtime.runner import CannotTell
from torchsleuth.torch_core.graphs.printer import print_graph, structural_hash
from torchsleuth.torch_core.graphs.recording import describe_values, record_values, recording_to_json
from torchsleuth.torch_core.tensors import (
    ContentStoreWriter,
    InputsDescription,
    ScalarSpec,
    SymbolSpec,
    TensorSpec,
    Unsupported,
    describe_inputs,
)
from torchsleuth.torch_internals.configuration import global_state, versions
from torchsleuth.torch_internals.decompositions import fake_results, forms_of
from torchsleuth.torch_internals.minifier_scripts import ForeignScript, NotHeld, read_foreign
from torchsleuth.torch_internals.schemas import operator_schemas

Announce = Callable[[str], None]
# The fastest of so many eager runs.
EAGER_RUNS = 5


def answer(trial: Trial, announce: Announce = lambda phase: None) -> Outcome:
    """What comes of `trial` in this process; a crash takes the process along, so let `workers` call it."""
    if trial.question is Question.FAILS:
        return run_trial(trial, announce)
    if trial.question is Question.PROGRAM:
        return run_program(trial, announce)
    started = time.monotonic()
    announce("run")
    try:
        value = _ANSWERS[trial.question](trial)
    except CannotTell as why:
        return Outcome(None, time.monotonic() - started, error=str(why))
    except Exception as error:
        return Outcome(None, time.monotonic() - started, error=f"{type(error).__name__}: {error}")
    return Outcome(None, time.monotonic() - started, value=value)


def _record(trial: Trial) -> dict[str, object]:
    """What every node yields in eager; the bytes go to the store where values matter."""
    ready = ready_trial(trial)
    symbolic = _fake_values(ready.graph, trial)[0] if trial.inputs.get("symbols") else {}
    with ready.ambient(), torch.set_grad_enabled(torch.is_grad_enabled() and _differentiable(trial)):
        recording = record_values(ready.eager, ready.inputs(), symbolic=symbolic)
    keep = trial.expected.phase != "compile" and trial.store is not None
    store = ContentStoreWriter(str(trial.store)) if keep else None
    return {"recording": recording_to_json(recording, store)}


def _differentiable(trial: Trial) -> bool:
    return any(spec.get("requires_grad") for spec in trial.inputs["inputs"])


def _record_fake(trial: Trial) -> dict[str, object]:
    """A recording of shapes alone, for a graph that cannot be run: enough where values do not matter."""
    graph = _graph(trial)
    found, _ = _fake_values(graph, trial)
    return {"recording": recording_to_json(describe_values(graph, found), None)}


def _fake_values(graph: torch.fx.GraphModule, trial: Trial) -> tuple[dict[str, object], Exception | None]:
    numbers = [spec.get("value") for spec in trial.inputs["inputs"]]
    return fake_results(graph, trial.inputs, numbers)


def _graph(trial: Trial) -> torch.fx.GraphModule:
    """The graph by itself: its inputs are not made."""
    scope = dict(namespace_of(trial.imports, trial.embedded))
    if trial.constants:
        values = load_inputs(trial.constants["description"], trial.store)
        scope["constant"] = dict(zip(trial.constants["names"], values)).__getitem__
    return read_graph(trial.graph, "Repro", scope)


def _noise(trial: Trial) -> dict[str, object]:
    """How far rounding alone moves the results."""
    return {"noise": asdict(noise_of(ready_trial(trial)))}


def _shapes(trial: Trial) -> dict[str, object]:
    """Whether shapes and dtypes go together, and what each node yields, worked out without computing anything."""
    found, error = _fake_values(_graph(trial), trial)
    return {
        "forms": forms_of(found),
        "why": None if error is None else f"{type(error).__name__}: {error}"[:500],
    }


def _definitions(trial: Trial) -> dict[str, object]:
    """The operators of the user's that the graph calls, as a process without them can declare them."""
    return {"schemas": operator_schemas(_graph(trial))}


def _eager_seconds(trial: Trial) -> dict[str, object]:
    """How long a run without the compiler takes at best, on one thread, as compiled runs are timed."""
    ready = ready_trial(trial)
    torch.set_num_threads(1)

    def run(values: list[object]) -> object:
        with torch.no_grad():
            return ready.eager(*values)

    return {"seconds": fastest(ready, run, EAGER_RUNS)}


def _divergence(trial: Trial) -> dict[str, object]:
    """Where the compiled run leaves eager's way: how far each value is off, and which kernel and node begin it."""
    # Only an analysis needs it, and a server has to start fast.
    from torchsleuth.child.divergence import divergence

    return divergence(trial)


def _foreign_script(trial: Trial) -> dict[str, object]:
    """A script of PyTorch's own minifier, executed and taken apart; `trial.graph` is its path."""
    try:
        foreign = read_foreign(Path(trial.graph))
        inputs = describe_inputs(foreign.inputs, None, ContentStoreWriter(str(trial.store)))
    except NotHeld as what:
        raise CannotTell(str(what)) from what
    except Unsupported as reason:
        raise CannotTell(f"it has inputs that cannot be kept: {reason}") from reason
    graph, state = foreign.graph, global_state() | {"grad": foreign.level == "dynamo"}
    if foreign.autocast:  # torch writes no other
        state["autocast"] = {"cuda": "torch.float16"}
    printed = print_graph(graph)
    return {
        "graph": printed.source,
        "imports": list(printed.imports),
        "calls": printed.calls,
        "hash": structural_hash(graph),
        "placeholders": [n.name for n in graph.graph.nodes if n.op == "placeholder"],
        "inputs": _with_symbols(inputs, foreign).to_json(),
        "level": foreign.level,
        "backend": foreign.backend,
        "accuracy": foreign.accuracy,
        "config": foreign.config,
        "inference": foreign.inference,
        "state": state,
        "versions": versions(),
    }


def _with_symbols(inputs: InputsDescription, foreign: ForeignScript) -> InputsDescription:
    """The inputs with the symbolic sizes that the script was written with."""
    specs: list[TensorSpec | ScalarSpec] = list(inputs.inputs)
    for place, sizes in foreign.sizes.items():
        spec = specs[place]
        if isinstance(spec, ScalarSpec):
            specs[place] = replace(spec, kind="symint", expr=str(sizes))
        elif spec.storage_offset == 0 and spec.stride == torch.empty(spec.shape, device="meta").stride():
            steps = ["*".join(f"({size})" for size in sizes[dim + 1 :]) or "1" for dim in range(len(sizes))]
            specs[place] = replace(spec, shape_expr=tuple(sizes), stride_expr=tuple(steps))
    symbols = {name: SymbolSpec(value) for name, value in foreign.symbols.items()}
    return replace(inputs, inputs=tuple(specs), symbols=symbols)


_ANSWERS: dict[Question, Callable[[Trial], dict[str, object]]] = {
    Question.RECORD: _record,
    Question.RECORD_FAKE: _record_fake,
    Question.NOISE: _noise,
    Question.SHAPES: _shapes,
    Question.DEFINITIONS: _definitions,
    Question.EAGER_SECONDS: _eager_seconds,
    Question.FOREIGN_SCRIPT: _foreign_script,
    Question.DIVERGENCE: _divergence,
}
