"""A script becomes a case: one that torchsleuth wrote, or one of PyTorch's own minifier.

A script of ours says what it expects; a foreign one is tried once, and how it fails is what is looked for from then on.
"""

from __future__ import annotations

import ast
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from torchsleuth.cases.folder import CaseFolder, now, write_case
from torchsleuth.cases.model import Case, GraphFacts, case_id
from torchsleuth.cases.record import AmbientState, CompileSettings, Embedded, GraphRecord
from torchsleuth.graphs.identity import structural_hash
from torchsleuth.graphs.printer import PrintedGraph, print_graph
from torchsleuth.minify.case_state import CannotMinify
from torchsleuth.repro.assemble import graph_files
from torchsleuth.script_runtime.signature import Signature, fingerprint, signature_from_json
from torchsleuth.tensors.specs import Unsupported, describe_inputs
from torchsleuth.tensors.store import ContentStoreWriter
from torchsleuth.torch_internals.configuration import global_state, versions
from torchsleuth.torch_internals.minifier_scripts import ForeignScript, is_foreign, read_foreign
from torchsleuth.trials.trial import Trial
from torchsleuth.workers.pool import Workers


def case_of_script(script: Path, cases_dir: Path, workers: Workers) -> CaseFolder:
    """The case that a script stands for, written into `cases_dir`.

    >>> minify_case(case_of_script(Path("minifier_launcher.py"), Path("cases"), workers), workers=workers)
    """
    text = script.read_text(encoding="utf-8")
    if is_foreign(text):
        return _adopt_foreign(script, cases_dir, workers)
    literals = _literals(text)
    if "FACTS" not in literals or "EXPECTED" not in literals:
        raise CannotMinify(
            f"{script} is neither a repro that torchsleuth wrote in full nor one of PyTorch's minifier; "
            "minify the case it belongs to, or run the failing program under `torchsleuth run`"
        )
    graph, embedded, imports = _parts(text)
    record = replace(
        GraphRecord.from_json(literals["FACTS"]), imports=imports, embedded=embedded, hash="script"
    )
    expected = signature_from_json(literals["EXPECTED"])
    return _write(cases_dir, record, graph, expected, script.parent / "inputs")


def _adopt_foreign(script: Path, cases_dir: Path, workers: Workers) -> CaseFolder:
    try:
        foreign = read_foreign(script)
        graph = torch.fx.symbolic_trace(foreign.module)
        printed = print_graph(graph)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise CannotMinify(f"{script} cannot be read as a script of PyTorch's minifier ({why})") from error
    with tempfile.TemporaryDirectory(prefix="torchsleuth-") as scratch:
        store = Path(scratch)
        try:
            inputs = describe_inputs(foreign.inputs, None, ContentStoreWriter(store)).to_json()
        except Unsupported as reason:
            raise CannotMinify(f"{script} has inputs that cannot be kept: {reason}") from reason
        record = replace(_record(foreign, graph, printed), inputs=inputs)
        expected = _observed(record, printed.source, store, workers, foreign.accuracy)
        if expected is None:
            raise CannotMinify(f"{script} does not fail here, so there is nothing to make smaller")
        return _write(cases_dir, record, printed.source, expected, store)


def _record(foreign: ForeignScript, graph: torch.fx.GraphModule, printed: PrintedGraph) -> GraphRecord:
    state = AmbientState(**global_state() | {"grad": foreign.level == "dynamo"})
    return GraphRecord(
        CompileSettings(foreign.level, foreign.backend, config=foreign.config, state=state),
        versions=versions(),
        hash=structural_hash(graph),
        placeholders=tuple(n.name for n in graph.graph.nodes if n.op == "placeholder"),
        calls=printed.calls,
        imports=tuple(printed.imports),
    )


def _observed(
    record: GraphRecord, graph: str, store: Path, workers: Workers, accuracy: bool
) -> Signature | None:
    """How a graph fails, when nothing in particular is expected."""
    trial = Trial(
        graph,
        Signature("accuracy" if accuracy else "runtime_error", "run"),
        record.settings,
        placeholders=record.placeholders,
        inputs=record.inputs or {},
        imports=record.imports,
        store=str(store),
    )
    outcome = workers.run(trial, fresh=True)
    if outcome.error is not None:
        raise CannotMinify(f"the script cannot be tried here: {outcome.error}")
    return outcome.signature


def _write(cases_dir: Path, record: GraphRecord, graph: str, expected: Signature, store: Path) -> CaseFolder:
    calls = record.calls or len(re.findall(r"^\s+\w+ = ", graph, re.MULTILINE))
    how = record.settings
    case = Case(
        id=case_id(fingerprint(expected), record.hash, None, torch.__version__, graph),
        created=now(),
        torch=torch.__version__,
        device="cpu",
        kind=expected.kind,
        phase=expected.phase,
        direction=how.direction,
        backend=how.backend,
        after=how.level,
        signature=expected,
        graph=GraphFacts(calls, len(record.placeholders)),
    )
    files = graph_files(case, replace(record, calls=calls), graph, store, {"signature": expected.to_json()})
    return write_case(cases_dir, case, files)


def _literals(text: str) -> dict[str, Any]:
    """The values of the literal assignments at the top of a script; nothing is executed."""
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


def _parts(text: str) -> tuple[str, Embedded, tuple[str, ...]]:
    """The graph, the user's definitions and the imports of a script of ours."""
    pieces = re.split(r"(?m)^# -{20,} ([^\n]+)\n", text)
    sections = dict(zip(pieces[1::2], pieces[2::2]))
    graph = next(body for title, body in sections.items() if title == "the graph")
    embedded = sections.get("from the program that failed", "")
    imports = tuple(line for line in pieces[0].splitlines() if re.match(r"(import|from) ", line))
    return graph.strip() + "\n", Embedded(embedded.strip()), imports
