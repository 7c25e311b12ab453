"""A case on disk as the state a search starts from, and whom its failure blames.

Nothing that the case carries is executed here: its operators are declared by their schemas, its functions by their
names. What they do is known to trials. Compilers name the operator they were at (`target: aten.relu.default`), the line
it came from (`Found from`), or at least write an operator's name into a message or a kernel's name; generated code
names it beside the call of a kernel that did not return. Wrong guesses cost a question or two.
"""

from __future__ import annotations

import ast
import contextlib
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import CaseFolder
from torchsleuth.core.cases.record import GraphRecord, read_record
from torchsleuth.core.protocol.codec import Document
from torchsleuth.script_runtime.inputs import InputsDamaged, load_inputs
from torchsleuth.script_runtime.reader import read_graph
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.minify.contract import Input, Reduction, State
from torchsleuth.search.minify.states import SHAPES, Questions
from torchsleuth.search.workers.queue import TrialQueue
from torchsleuth.torch_core.graphs.source_line import SourceLine
from torchsleuth.torch_core.graphs.spelling import RESERVED
from torchsleuth.torch_core.repro.assemble import TITLE
from torchsleuth.torch_core.repro.tiny import tiny_trial
from torchsleuth.torch_core.tensors import InputsDescription, ScalarSpec, TensorSpec, as_in_memory
from torchsleuth.torch_internals.operators import load_compiler_operators, short_name
from torchsleuth.torch_internals.schemas import declare_operators

# An operator that makes up more than this share of a graph is no hint.
COMMON = 0.25


class CannotMinify(SleuthError):
    """A case from which no search can start; says why and what to do."""


@dataclass(frozen=True)
class SearchStart:
    """What a search needs of a case: where to start, what to look for, and who may be to blame."""

    state: State
    expected: Signature
    record: GraphRecord
    traceback: str

    def blamed(self) -> list[str]:
        """Names of nodes that the failure blames, most suspicious first."""
        return seeds(self.state.graph, self.traceback, self.expected.message, self.record.nodes)


@dataclass
class CaseQuestions(Questions):
    """The questions of a host, the cases it has read, each once, and what it has made of them."""

    smallest: dict[Path, Reduction] = field(default_factory=dict)
    _opened: dict[Path, SearchStart] = field(default_factory=dict)

    def start_of(self, folder: CaseFolder) -> SearchStart:
        """The case as the state a search starts from, whose shapes are asked from here on as all else.

        Raises `CannotMinify` where something is missing.
        """
        SHAPES.set(self.shapes)
        if folder.path not in self._opened:
            self.begins("reading the case")
            self._opened[folder.path] = search_start(folder, self)
        return self._opened[folder.path]


def search_start(folder: CaseFolder, questions: Questions) -> SearchStart:
    """Reads the graph, inputs and settings of a case; raises `CannotMinify` where something is missing."""
    case = folder.case
    if case.no_repro is not None:
        raise CannotMinify(f"case {case.id} has no repro to make smaller: {case.no_repro}")
    try:
        record = read_record(folder.file("record.json"))
        inputs = folder.json("inputs.json")
        source = folder.text("graph.py")
    except ValueError as error:
        raise CannotMinify(
            f"case {case.id} has lost its graph or inputs ({error}); record it again"
        ) from error
    text = folder.text("traceback.txt") if folder.has("traceback.txt") else ""
    state = state_of_record(record, source, inputs, folder.file("inputs"), case.signature, questions)
    return SearchStart(_as_eager_runs(state, case.signature, questions), case.signature, record, text)


def _as_eager_runs(state: State, expected: Signature, questions: Questions) -> State:
    """The state without its backward, where the failure comes before that one and eager has none, either.

    Some derivatives do not exist. A program that asks for none of them passes in eager; to ask for them here would make
    every candidate fail there.
    """
    how = state.settings
    if expected.phase != "compile" or (how.level, how.direction) != ("dynamo", "forward"):
        return state
    forward = state.setting(forward_only=True)
    needs_it = questions.passes_in_eager(state, expected) or not questions.passes_in_eager(forward, expected)
    return state if needs_it else forward


def wait_for_device(workers: TrialQueue, device: str, seconds: float) -> float:
    """Seconds until a first trial could run on a device other than the CPU, and none there.

    On a cold machine its set-up may take longer than a search: that is not time spent on the question. Raises
    `CannotMinify` where there is no such device.
    """
    started = time.monotonic()
    if device != "cpu":
        with contextlib.suppress(TimeoutError):
            outcome = workers.submit(tiny_trial(device=device), fresh=True).result(seconds)
            if outcome.error is not None:
                raise CannotMinify(
                    f"the failure was seen on {device}, which is not here ({outcome.error[:120]}); "
                    "make it smaller on a machine that has it"
                )
    return time.monotonic() - started


def state_of_record(
    record: GraphRecord,
    source: str,
    inputs: Document,
    store: Path,
    expected: Signature,
    questions: Questions,
) -> State:
    """The state of a recorded graph, with its kept values, on the CPU, where the failure may depend on them."""
    folder = str(store) if store.is_dir() else None
    any_values = expected.phase == "compile"
    try:
        kwargs = dict(record.settings.compile_kwargs)
        static = kwargs.pop("static_input_idxs", None)
        graph = _read(record, source, folder, questions)
        values = load_inputs(_in_memory(inputs), folder) if not any_values else None
        description = InputsDescription.from_json(inputs)
        nodes = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
        made = tuple(
            _input(name, spec, None if values is None else values[place])
            for place, (name, spec) in enumerate(zip(nodes, description.inputs, strict=True))
        )
        fixed = None if static is None else tuple(sorted(record.placeholders[i] for i in static))
        devices = _devices(record)
    except InputsDamaged as error:
        raise CannotMinify(str(error)) from error
    except Exception as error:
        raise CannotMinify(
            f"the graph cannot be set up here ({type(error).__name__}: {error}); "
            "run the case's original.py to see what it needs"
        ) from error
    settings = replace(record.settings, compile_kwargs=kwargs)
    return State(
        graph,
        made,
        description.symbols,
        settings,
        record.embedded,
        any_values,
        fixed,
        constant_devices=devices,
    )


def _input(name: str, spec: TensorSpec | ScalarSpec, value: object) -> Input:
    """An input with its value. Where the case keeps it is forgotten, or a state freed of it would still have it."""
    if not isinstance(spec, TensorSpec):
        return Input(name, spec)
    return Input(name, replace(spec, storage=None), None if spec.layout == "zero" else value)


def _on_cpu(description: Document) -> dict[str, Any]:
    """The description with every tensor on the CPU: this process touches no device."""
    specs = [{**spec, "device": "cpu"} if "device" in spec else spec for spec in description["inputs"]]
    return {**description, "inputs": specs}


def _in_memory(description: Document) -> dict[str, Any]:
    """The description of what a search holds as values: strided memory, whatever a trial makes of it."""
    on_cpu = _on_cpu(description)
    specs = [as_in_memory(spec) if spec["kind"] == "tensor" else spec for spec in on_cpu["inputs"]]
    return {**on_cpu, "inputs": specs}


def _devices(record: GraphRecord) -> dict[str, str]:
    if not record.constants:
        return {}
    specs = record.constants["description"]["inputs"]
    return {
        name: str(spec["device"]) for name, spec in zip(record.constants["names"], specs) if "device" in spec
    }


def _read(record: GraphRecord, source: str, folder: str | None, questions: Questions) -> torch.fx.GraphModule:
    """The graph, read without running anything of the user's: operators by schema, functions by name."""
    scope: dict[str, object] = {"torch": torch, "__name__": "torchsleuth_case"}
    for line in (*record.imports, *record.embedded.imports):
        root = line.split()[1].partition(".")[0]
        if root in ("torch", "functorch", "triton") or root in sys.stdlib_module_names:
            exec(line, scope)
    if record.constants:
        values = load_inputs(_on_cpu(record.constants["description"]), folder)
        scope["constant"] = dict(zip(record.constants["names"], values)).__getitem__
    for name in free_names(source):
        scope.setdefault(name, _stand_in(name))
    try:
        return read_graph(source, "Repro", scope)
    except AttributeError:  # an operator that only the compiler defines; loading it takes a second
        load_compiler_operators()
    try:
        return read_graph(source, "Repro", scope)
    except AttributeError:  # or one of the user's own
        declare_operators(questions.schemas(record, source, folder))
        return read_graph(source, "Repro", scope)


def free_names(source: str) -> list[str]:
    """The names that the text of a graph uses and does not define: functions of the user's.

    >>> free_names("class Repro:\\n    def forward(self, x):\\n        y = mine(x)\\n        return y\\n")
    ['mine']
    """
    tree = ast.parse(source)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    made = {node.id for node in names if isinstance(node.ctx, ast.Store)} | RESERVED
    made |= {node.name for node in ast.walk(tree) if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    made |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return list(dict.fromkeys(node.id for node in names if node.id not in made))


def _stand_in(name: str) -> Callable[..., object]:
    """A function that prints as the user's does, and is never called."""

    def stand_in(*_: object, **__: object) -> object:
        raise TypeError(f"{name} is a function of the user's, which runs in trials only")

    stand_in.__name__ = stand_in.__qualname__ = name
    stand_in.__module__ = "__main__"
    return stand_in


def seeds(graph: torch.fx.GraphModule, text: str, message: str, lines: Mapping[str, SourceLine]) -> list[str]:
    """Names of nodes, most suspicious first; `text` is the traceback, `lines` the user's line of each node.

    >>> seeds(gm, "While executing %relu : [num_users=1] = call_function[target=torch.relu]", "", {})
    ['relu']
    """
    calls = [n for n in graph.graph.nodes if n.op.startswith("call_")]
    generated = text.rpartition(TITLE)[2] if TITLE in text else ""
    targets = set(re.findall(r"^\s*target: ([\w.]+)", text, re.MULTILINE))
    targets |= set(re.findall(r"'torch\.ops\.([\w.]+)'", generated))
    found_from = text.rpartition("Found from")[2] if "Found from" in text else ""
    places = set(re.findall(r'File "([^"]+)", line (\d+)', found_from))
    executing = set(re.findall(r"While executing %(\w+)", text))
    words = set(re.split(r"[^a-z0-9]+|_", message.lower()))
    score: dict[str, float] = {}
    for node in calls:
        points = 0.0
        if node.name in executing:
            points += 8
        if str(node.target) in targets or _holds(graph, node, targets):
            points += 4
        line = lines.get(node.name)
        if points and line and (line.file, str(line.line)) in places:
            points += 2
        name = short_name(node.target).lower()
        if len(name) > 2 and (
            name in words
            or ("_" in name and words.issuperset(name.strip("_").split("_")))
            or re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])", generated)
        ):
            points += 1
        if points:
            score[node.name] = points
    if len(score) > COMMON * len(calls) and len(calls) > 16 and max(score.values()) <= 1:
        return []
    return sorted(score, key=lambda name: -score[name])


def _holds(graph: torch.fx.GraphModule, node: torch.fx.Node, targets: set[str]) -> bool:
    """Whether a nested graph that the node calls holds one of the targets."""
    held = [getattr(graph, str(each.target), None) for each in node.all_input_nodes if each.op == "get_attr"]
    nested = [each for each in held if isinstance(each, torch.fx.GraphModule)]
    return any(str(inner.target) in targets for each in nested for inner in each.graph.nodes)
