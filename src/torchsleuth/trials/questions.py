"""Everything a trial child can be asked, by the name of the question; each child answers one.

"fails" is the question of a search. The others are what a search has to know and may not find out itself, because
finding out can end the process: eager values, rounding noise, shapes, the user's definitions, a stranger's script.
Their answers are in `Outcome.more`; a signature says that the process failed at it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from torchsleuth.compare.verdict.tolerances import measured_tolerances
from torchsleuth.graphs.printer import print_graph
from torchsleuth.graphs.recording import record_values, recording_to_json
from torchsleuth.script_runtime.relaxed import with_reshapes
from torchsleuth.script_runtime.runner import CannotTell, ReproTrial
from torchsleuth.tensors.specs import Unsupported, describe_inputs
from torchsleuth.tensors.store import ContentStoreWriter
from torchsleuth.torch_internals.configuration import global_state, versions
from torchsleuth.torch_internals.fake_results import fake_results
from torchsleuth.torch_internals.minifier_scripts import read_foreign
from torchsleuth.torch_internals.schemas import operator_schemas
from torchsleuth.trials.compile import ready_trial, run_trial
from torchsleuth.trials.trial import Outcome, Question, Trial

Announce = Callable[[str], None]
# The fastest of so many eager runs.
EAGER_RUNS = 5


def answer(trial: Trial, announce: Announce = lambda phase: None) -> Outcome:
    """What comes of `trial` in this process; a crash takes the process along, so let `workers` call it."""
    if trial.question is Question.FAILS:
        return run_trial(trial, announce)
    started = time.monotonic()
    announce("run")
    try:
        more = _ANSWERS[trial.question](trial)
    except CannotTell as why:
        return Outcome(None, time.monotonic() - started, error=str(why))
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        return Outcome(None, time.monotonic() - started, error=why)
    return Outcome(None, time.monotonic() - started, more=more)


def _record(trial: Trial) -> dict[str, Any]:
    """What every node yields in eager; the bytes go to the store where values matter."""
    ready = ready_trial(trial)
    symbolic = _fakes(ready) if trial.inputs.get("symbols") else {}
    kinds = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
    fakes = {name: value for name, value in symbolic.items() if isinstance(value, kinds)}
    with ready.ambient(), torch.set_grad_enabled(torch.is_grad_enabled() and _differentiable(trial)):
        recording = record_values(ready.eager, ready.inputs(), symbolic=fakes)
    keep = trial.expected.phase != "compile" and trial.store is not None
    store = ContentStoreWriter(str(trial.store)) if keep else None
    return {"recording": recording_to_json(recording, store)}


def _differentiable(trial: Trial) -> bool:
    return any(spec.get("requires_grad") for spec in trial.inputs["inputs"])


def _fakes(ready: ReproTrial) -> dict[str, Any]:
    numbers = [None if isinstance(value, torch.Tensor) else value for value in ready.inputs()]
    return fake_results(ready.graph, ready.facts["inputs"], numbers)[0]


def _noise(trial: Trial) -> dict[str, Any]:
    """How far rounding alone moves the results."""
    ready = ready_trial(trial)
    return {"tolerances": asdict(measured_tolerances(with_reshapes(ready.graph), ready.inputs()))}


def _shapes(trial: Trial) -> dict[str, Any]:
    """Whether shapes and dtypes go together, and what each node yields, worked out without computing anything."""
    ready = ready_trial(trial, values=False)
    numbers = [spec.get("value") for spec in trial.inputs["inputs"]]
    found, error = fake_results(ready.graph, trial.inputs, numbers)
    forms = {
        name: f"{value.dtype}{tuple(map(str, value.shape))}"
        for name, value in found.items()
        if isinstance(value, torch.Tensor)
    }
    return {"forms": forms, "why": None if error is None else f"{type(error).__name__}: {error}"[:500]}


def _definitions(trial: Trial) -> dict[str, Any]:
    """The operators and functions of the user's that the graph calls, as a process without them can stand in for."""
    ready = ready_trial(trial, values=False)
    printed = print_graph(ready.graph)
    references = {name: getattr(thing, "__qualname__", name) for name, thing in printed.references.items()}
    return {"schemas": operator_schemas(ready.graph), "references": references}


def _eager_seconds(trial: Trial) -> dict[str, Any]:
    """How long a run without the compiler takes at best, on one thread, as compiled runs are timed."""
    ready = ready_trial(trial)
    torch.set_num_threads(1)
    best = float("inf")
    for _ in range(EAGER_RUNS):
        values = ready.inputs()
        with ready.ambient(), torch.no_grad():
            started = time.perf_counter()
            ready.eager(*values)
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - started)
    return {"seconds": best}


def _foreign_script(trial: Trial) -> dict[str, Any]:
    """A script of PyTorch's own minifier, executed and taken apart; `trial.graph` is its path."""
    foreign = read_foreign(Path(trial.graph))
    graph = torch.fx.symbolic_trace(foreign.module)
    printed = print_graph(graph)
    try:
        inputs = describe_inputs(foreign.inputs, None, ContentStoreWriter(str(trial.store))).to_json()
    except Unsupported as reason:
        raise CannotTell(f"it has inputs that cannot be kept: {reason}") from reason
    return {
        "graph": printed.source,
        "imports": list(printed.imports),
        "calls": printed.calls,
        "placeholders": [n.name for n in graph.graph.nodes if n.op == "placeholder"],
        "inputs": inputs,
        "level": foreign.level,
        "backend": foreign.backend,
        "accuracy": foreign.accuracy,
        "config": foreign.config,
        "state": global_state() | {"grad": foreign.level == "dynamo"},
        "versions": versions(),
    }


_ANSWERS: dict[Question, Callable[[Trial], dict[str, Any]]] = {
    Question.RECORD: _record,
    Question.NOISE: _noise,
    Question.SHAPES: _shapes,
    Question.DEFINITIONS: _definitions,
    Question.EAGER_SECONDS: _eager_seconds,
    Question.FOREIGN_SCRIPT: _foreign_script,
}
