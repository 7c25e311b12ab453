"""The analysis of a trial's graph: compiled as the case is, watched while it runs.

What was found is written to a file part by part, so that an analysis that is ended early, or ends with its process,
leaves what it had.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import torch

from torchsleuth.child.compile import ready_trial
from torchsleuth.core.protocol.codec import Document
from torchsleuth.core.protocol.trials import Trial
from torchsleuth.script_runtime import runner
from torchsleuth.torch_core.compare.divergence.analysis import (
    GRADIENTS,
    analyze,
    analyze_exposed,
    wrong_gradient,
)
from torchsleuth.torch_core.compare.divergence.measure import Keep, Subject, written_inputs
from torchsleuth.torch_core.compare.divergence.parts import AOT_ALONE, Compilers, aten_ways, captured_ways
from torchsleuth.torch_core.compare.reference import opkinds
from torchsleuth.torch_core.compare.reference.cloning import clone_inputs
from torchsleuth.torch_core.compare.reference.eager import run_eager
from torchsleuth.torch_core.compare.reference.memory import memory_beside
from torchsleuth.torch_core.tensors import ContentStoreWriter
from torchsleuth.torch_internals.generated_code import CompiledCode, observed_code
from torchsleuth.torch_internals.kernel_builds import without_idle_work

# On the nodes of a captured graph, where AOTAutograd hands it on to the nodes that it makes of them.
_MARK = '  File "torchsleuth.node", line 1, in {name}\n    {name}'
_MARKED = re.compile(r'File "torchsleuth\.node", line 1, in (\w+)')


def divergence(trial: Trial) -> dict[str, object]:
    """The parts of the answer (see `compare.divergence.analysis`)."""
    ready = ready_trial(trial)
    tell = _teller(trial.analysis.told)
    captured = trial.settings.level == "dynamo"
    for node in ready.graph.graph.nodes:
        if captured:
            node.meta["stack_trace"] = _MARK.format(name=node.name)
        else:  # by which Inductor names kernels
            node.meta.setdefault("original_aten", node.target)
    tell({"phase": "compile", "done": 0, "of": 0})
    with observed_code() as codes:
        compile_it = ready.prepare()
        with ready.ambient(), without_idle_work():
            compiled = compile_it()

    def call(values: list[object]) -> object:
        with ready.ambient():
            return compiled(values)

    inputs = ready.inputs()
    with memory_beside(lambda: call(clone_inputs(inputs)), inputs):
        return _parts(trial, ready, inputs, codes, call, tell)


def _parts(
    trial: Trial,
    ready: runner.ReproTrial,
    inputs: list[object],
    codes: list[CompiledCode],
    call: Callable[[list[object]], object],
    tell: Callable[[Document], None],
) -> dict[str, object]:
    captured = trial.settings.level == "dynamo"
    drawn = None
    if any(opkinds.may_draw(node) for node in ready.eager.graph.nodes):
        with ready.ambient(), torch.no_grad():
            drawn = run_eager(ready.eager, inputs, None)[1]
    ways = _ways(ready)
    wishes = trial.analysis
    code = next((each for each in codes if not each.backward or not captured), None)
    subject = None
    if code is None or not code.written:
        why = "no code of Inductor's runs it" if code is None else code.blind or "its code shows no values"
    else:
        known = {node.name for node in ready.eager.graph.nodes}
        names = _values_of_calls(code, captured)
        node_of = {name: of for name, of in names.items() if of in known} | written_inputs(ready.eager)
        subject = Subject(ready.eager, inputs, call, code, node_of, drawn)
        why = "the compiler's passes replaced every value that its code keeps"
    if subject is not None and subject.seen:
        parts = analyze(subject, ways, tell, wishes.without, _keeper(wishes.values))
    else:
        parts = analyze_exposed(ready.eager, inputs, ways, tell, why, drawn)
    wanted = captured and ready.facts["gradients"] and GRADIENTS not in wishes.without
    if wanted and parts.get("culprit") is None:
        parts["culprit"] = wrong_gradient(
            ready.eager, inputs, ways, tell, drawn, captured_ways(AOT_ALONE, {}, ready.ambient)
        )
        tell({"part": "culprit", "value": parts["culprit"]})
    return parts


def _values_of_calls(code: CompiledCode, captured: bool) -> dict[str, str]:
    """For each node that has a call's value, the call; of a captured graph it is the last node that was made of it."""
    if not captured:
        return {name: name for name, node in code.nodes.items() if node.op.startswith("call_")}
    last: dict[str, str] = {}
    for name, node in code.nodes.items():
        marks = _MARKED.findall(node.meta.get("stack_trace") or "")
        if marks and node.op.startswith("call_"):
            last[marks[-1]] = name
    return {name: mark for mark, name in last.items()}


def _ways(ready: runner.ReproTrial) -> Compilers:
    """Ways to compile a part of the graph as the graph is compiled."""
    facts, own = ready.facts, ready.namespace.get("backend")
    if facts["level"] == "aot":
        return aten_ways(facts["compile_kwargs"], own, ready.ambient, facts["inputs"])
    options = {key: eval(text, dict(ready.namespace)) for key, text in facts["options"].items()}
    return captured_ways(own or facts["backend"], options, ready.ambient)


def _teller(path: str | None) -> Callable[[Document], None]:
    """Appends what is told to a file, one line each; of progress, only what somebody could notice."""
    if path is None:
        return lambda message: None
    file = open(path, "w", encoding="utf-8")  # noqa: SIM115  closed with the process, which has nothing else to do
    shown: dict[str, int] = {}

    def tell(message: Document) -> None:
        done, of = message.get("done", 0), message.get("of", 0)
        if "phase" in message and of and done * 50 // of == shown.get(message["phase"]):
            return
        if "phase" in message and of:
            shown[message["phase"]] = done * 50 // of
        file.write(json.dumps(message) + "\n")
        file.flush()

    return tell


def _keeper(folder: str | None) -> Keep | None:
    """Writes each value and eager's to a folder of tensors, with an index by node."""
    if folder is None:
        return None
    store, index = ContentStoreWriter(folder), {}

    def keep(name: str, compiled: torch.Tensor, eager: torch.Tensor) -> None:
        both = [tensor.detach().cpu().contiguous() for tensor in (compiled, eager)]
        index[name] = {
            "dtype": str(eager.dtype).removeprefix("torch."),
            "shape": list(eager.shape),
            "compiled": store.write_storage(both[0].untyped_storage()),
            "eager": store.write_storage(both[1].untyped_storage()),
        }
        (Path(folder) / "index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")

    return keep
