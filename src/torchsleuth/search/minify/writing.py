"""The minimal state as scripts, the most readable form first; whether they fail is for fresh processes to say.

A small function under `torch.compile` first, then one with operators by name, then the graph handed to the part of the
compiler that fails, and last the exact script, which does what the trial did with the runtime file beside it.
"""

from __future__ import annotations

from dataclasses import replace

from torchsleuth.core.cases.folder import CaseFolder
from torchsleuth.core.processes.limits import seconds_of_a_hang
from torchsleuth.front.supervise.verification import CHECKPOINTS, REPRO, ScriptToVerify
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.minify.case_state import SearchStart
from torchsleuth.search.minify.search.contract import State
from torchsleuth.search.minify.trial_of_state import trial_of
from torchsleuth.torch_core.compare.reference.eager import MUTATED
from torchsleuth.torch_core.compare.verdict.tolerances import Tolerances
from torchsleuth.torch_core.graphs.cut import calls_of
from torchsleuth.torch_core.graphs.writes import written_inputs
from torchsleuth.torch_core.repro.script import RUNTIME, runtime_text, script_text
from torchsleuth.torch_core.repro.small import small_script, small_scripts
from torchsleuth.torch_core.repro.small_graph import SmallGraph, SmallInput

EXACT = "exact"


def write_scripts(
    folder: CaseFolder,
    start: SearchStart,
    state: State,
    tolerances: Tolerances,
    text: str,
    *,
    complete: bool = True,
) -> list[ScriptToVerify]:
    """Puts every form of the state under checkpoints/, with its data where it will look for it.

    A search that was `complete` has tried whether a whole compile fails, too.
    """
    place = folder.file(CHECKPOINTS)
    place.mkdir(exist_ok=True)
    written = []
    small = small_graph(folder, start, state, tolerances, text)
    for script in small_scripts(small, untried=not complete):
        for name, data in script.files.items():
            (place / name).write_bytes(data)
        one = ScriptToVerify(script.form, tuple(script.files), script.input_bytes, random=script.random)
        folder.file(one.name).write_text(script.text, encoding="utf-8")
        written.append(one)
    exact = exact_script(folder, start, state, tolerances)
    (place / f"{EXACT}.py").write_text(exact, encoding="utf-8")
    return [*written, ScriptToVerify(EXACT, (RUNTIME,), needs_inputs=True)]


def runtime_files() -> dict[str, str]:
    """The runtime beside repro.py, and beside the scripts under checkpoints/."""
    return {RUNTIME: runtime_text(), f"{CHECKPOINTS}/{RUNTIME}": runtime_text()}


def best_so_far(
    folder: CaseFolder, start: SearchStart, state: State, tolerances: Tolerances, text: str
) -> str:
    """A script for a state on the way, which stays where the search ends: a small one that does what trials do."""
    script = small_script(small_graph(folder, start, state, tolerances, text))
    if script is not None and not script.files:
        return script.text
    return exact_script(folder, start, state, tolerances)


def exact_script(folder: CaseFolder, start: SearchStart, state: State, tolerances: Tolerances) -> str:
    """The script that does exactly what the trial did, with the runtime file beside it."""
    trial = trial_of(state, start.expected, folder.file("inputs"))
    lines = start.record.nodes
    record = replace(
        start.record,
        settings=trial.settings,
        placeholders=trial.placeholders,
        constants=trial.constants,
        imports=trial.imports,
        calls=calls_of(state.graph),
        source_lines=tuple(
            dict.fromkeys(lines[n.name].place for n in state.graph.graph.nodes if n.name in lines)
        ),
    )
    return script_text(
        record,
        trial.graph,
        start.expected.to_json(),
        inputs=trial.inputs,
        tolerances=tolerances.by_path,
        case=folder.case.id,
        name=REPRO,
    )


def small_graph(
    folder: CaseFolder, start: SearchStart, state: State, tolerances: Tolerances, text: str = ""
) -> SmallGraph:
    """The state as what a small script is written from; `text` is the traceback of a trial that failed."""
    timeout, hangs = folder.case.extra.get("timeout"), start.expected.kind == "hang"
    return SmallGraph(
        graph=state.graph,
        inputs=tuple(SmallInput(i.name, i.spec, i.value) for i in state.inputs),
        settings=state.settings,
        signature=_own_signature(start.expected, state),
        embedded=state.embedded,
        dynamic=bool(state.symbols),
        tolerance=tolerances.distance,
        case=folder.case.id,
        text=text,
        hung_after=seconds_of_a_hang(timeout, calls_of(state.graph)) if hangs else None,
    )


def _own_signature(signature: Signature, state: State) -> Signature:
    """The results that a wrong one names are those of the small graph, not of the one it was cut from."""
    if signature.kind != "accuracy":
        return signature
    outputs = [f"outputs[{i}]" for i in range(len(state.graph.graph.output_node().all_input_nodes))]
    written = written_inputs(state.graph)
    outputs += [f"inputs[{i}]{MUTATED}" for i, given in enumerate(state.inputs) if given.name in written]
    return replace(signature, outputs=tuple(outputs))
