"""A case on disk as the state a search starts from.

Reading the graph runs the definitions that the case carries (custom operators, the user's own backend), as
running its repro would.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from torchsleuth.cases.errors import SleuthError
from torchsleuth.cases.folder import CaseFolder
from torchsleuth.cases.record import GraphRecord, read_record
from torchsleuth.minify.search.contract import Input, State
from torchsleuth.script_runtime.inputs import InputsDamaged, load_inputs
from torchsleuth.script_runtime.reader import read_graph
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.supervise.interpreter import Prestarted
from torchsleuth.tensors.specs import InputsDescription, TensorSpec
from torchsleuth.torch_internals.operators import load_compiler_operators
from torchsleuth.trials.compile import tiny_trial
from torchsleuth.workers.queue import Desk

# A graph that takes longer in eager, for which no clock was given, is taken for hung.
EAGER_SECONDS = 120.0


class CannotMinify(SleuthError):
    """A case from which no search can start; says why and what to do."""


@dataclass(frozen=True)
class OpenedCase:
    """What a search needs of a case: where to start, what to look for, and who may be to blame."""

    state: State
    expected: Signature
    record: GraphRecord
    traceback: str


def open_for_search(folder: CaseFolder) -> OpenedCase:
    """Reads the graph, inputs and settings of a case; raises `CannotMinify` where something is missing."""
    case = folder.case
    if case.no_repro is not None:
        raise CannotMinify(f"case {case.id} has no repro to make smaller: {case.no_repro}")
    try:
        record = read_record(folder.file("record.json"))
        inputs = json.loads(folder.file("inputs.json").read_text(encoding="utf-8"))
        source = folder.file("graph.py").read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CannotMinify(
            f"case {case.id} has lost its graph or inputs ({error}); record it again"
        ) from error
    trace = folder.file("traceback.txt")
    text = trace.read_text(encoding="utf-8", errors="replace") if trace.is_file() else ""
    state = state_of_record(record, source, inputs, folder.file("inputs"), case.signature)
    return OpenedCase(state, case.signature, record, text)


def refuse_deadly_graph(folder: CaseFolder, early: Prestarted) -> None:
    """Raises `CannotMinify` where a case that crashed or hung while running does so without the compiler, too.

    A search runs the graph once in its own process to know its intermediate values: that must not be its end.
    """
    case, script = folder.case, folder.file("original.py")
    if (
        case.phase != "run"
        or case.kind not in ("crash", "hang")
        or case.device != "cpu"
        or not script.is_file()
    ):
        return
    deadline = time.monotonic() + float(case.extra.get("timeout") or EAGER_SECONDS)
    run = early.run(script, case.signature, arguments=("--eager",), deadline=deadline)
    if run.answer in ("cannot_tell", "reproduced"):
        raise CannotMinify(
            f"the graph of case {case.id} cannot be run without the compiler either ({run.summary}), so the bug "
            f"is the program's or an operator's own; see `python {script} --eager`"
        )


def wait_for_device(workers: Desk, device: str, seconds: float) -> float:
    """Seconds until a first trial could run on a device other than the CPU, and none there.

    On a cold machine its set-up may take longer than a search: that is not time spent on the question.
    """
    started = time.monotonic()
    if device != "cpu":
        with contextlib.suppress(TimeoutError):
            workers.submit(tiny_trial(device=device), fresh=True).result(seconds)
    return time.monotonic() - started


def state_of_record(
    record: GraphRecord, source: str, inputs: Mapping[str, Any], store: Path, expected: Signature
) -> State:
    """The state of a recorded graph, with its kept values where the failure may depend on them."""
    _require_devices(inputs)
    folder = str(store) if store.is_dir() else None
    any_values = expected.phase == "compile"
    kwargs = dict(record.settings.compile_kwargs)
    static = kwargs.pop("static_input_idxs", None)
    try:
        graph = _read(source, _namespace(record, folder))
        values = load_inputs(dict(inputs), folder) if not any_values else None
    except InputsDamaged as error:
        raise CannotMinify(str(error)) from error
    except Exception as error:
        raise CannotMinify(
            f"the graph cannot be set up here ({type(error).__name__}: {error}); "
            "run the case's original.py to see what it needs"
        ) from error
    description = InputsDescription.from_json(inputs)
    nodes = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
    made = tuple(
        Input(name, spec, values[place] if values is not None and isinstance(spec, TensorSpec) else None)
        for place, (name, spec) in enumerate(zip(nodes, description.inputs, strict=True))
    )
    return State(
        graph,
        made,
        description.symbols,
        replace(record.settings, compile_kwargs=kwargs),
        record.embedded,
        any_values,
        None if static is None else tuple(sorted(record.placeholders[i] for i in static)),
    )


def _require_devices(inputs: Mapping[str, Any]) -> None:
    for device in sorted({str(spec["device"]) for spec in inputs["inputs"] if "device" in spec} - {"cpu"}):
        try:
            torch.empty(0, device=device)
        except Exception as error:  # each kind of device has its own way of not being there
            raise CannotMinify(
                f"the failure was seen on {device}, which is not here ({str(error).strip().splitlines()[0][:80]}); "
                "make it smaller on a machine that has it"
            ) from error


def _read(source: str, namespace: dict[str, Any]) -> torch.fx.GraphModule:
    try:
        return read_graph(source, "Repro", namespace)
    except AttributeError:  # an operator that only the compiler defines; loading it takes a second
        load_compiler_operators()
        return read_graph(source, "Repro", namespace)


def _namespace(record: GraphRecord, folder: str | None) -> dict[str, Any]:
    scope: dict[str, Any] = {"torch": torch, "__name__": "torchsleuth_case"}
    lines = [*record.imports, *record.embedded.imports, record.embedded.source]
    exec(compile("\n".join(lines), "<case>", "exec"), scope)
    kept = record.constants
    if kept:
        held = dict(zip(kept["names"], load_inputs(kept["description"], folder)))
        scope["constant"] = held.__getitem__
    return scope
