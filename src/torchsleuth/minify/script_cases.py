"""A script becomes a case: one that torchsleuth wrote, or one of PyTorch's own minifier.

A script of ours says what it expects; a foreign one is tried once, and how it fails is what is looked for from then on.
"""

from __future__ import annotations

import ast
import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torchsleuth.cases.folder import CaseFolder, now, write_case
from torchsleuth.cases.model import Case, GraphFacts, case_id
from torchsleuth.graphs.identity import structural_hash
from torchsleuth.graphs.printer import print_graph
from torchsleuth.minify.case_state import CannotMinify
from torchsleuth.repro.script import script_text
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
    facts = literals["FACTS"]
    graph, embedded, imports = _parts(text)
    record = {**facts, "imports": imports, "embedded": embedded, "no_repro": None, "nodes": {}}
    expected = signature_from_json(literals["EXPECTED"])
    return _write(cases_dir, record, graph, facts["inputs"], expected, script.parent / "inputs", "script")


def _adopt_foreign(script: Path, cases_dir: Path, workers: Workers) -> CaseFolder:
    try:
        foreign = read_foreign(script)
        graph = torch.fx.symbolic_trace(foreign.module)
        printed = print_graph(graph)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise CannotMinify(f"{script} cannot be read as a script of PyTorch's minifier ({why})") from error
    record = _record(foreign, graph, printed)
    with tempfile.TemporaryDirectory(prefix="torchsleuth-") as scratch:
        store = Path(scratch)
        try:
            inputs = describe_inputs(foreign.inputs, None, ContentStoreWriter(store)).to_json()
        except Unsupported as reason:
            raise CannotMinify(f"{script} has inputs that cannot be kept: {reason}") from reason
        expected = _observed(record, printed.source, inputs, store, workers, foreign.accuracy)
        if expected is None:
            raise CannotMinify(f"{script} does not fail here, so there is nothing to make smaller")
        return _write(cases_dir, record, printed.source, inputs, expected, store, structural_hash(graph))


def _record(foreign: ForeignScript, graph: torch.fx.GraphModule, printed: Any) -> dict[str, Any]:
    return {
        "level": foreign.level,
        "backend": foreign.backend,
        "direction": "forward",
        "options": {},
        "compile_kwargs": {},
        "config": foreign.config,
        "state": global_state() | {"grad": foreign.level == "dynamo"},
        "versions": versions(),
        "output_meta": {},
        "placeholders": [n.name for n in graph.graph.nodes if n.op == "placeholder"],
        "no_repro": None,
        "calls": printed.calls,
        "imports": list(printed.imports),
        "nodes": {},
        "source_lines": [],
    }


def _observed(
    record: Mapping[str, Any],
    graph: str,
    inputs: Mapping[str, Any],
    store: Path,
    workers: Workers,
    accuracy: bool,
) -> Signature | None:
    """How a graph fails, when nothing in particular is expected."""
    kind = "accuracy" if accuracy else "runtime_error"
    facts = {**record, "kind": kind, "inputs": inputs, "tolerances": {}, "constants": None}
    trial = Trial(graph, facts, Signature(kind, "run"), imports=tuple(record["imports"]), store=str(store))
    outcome = workers.run(trial, fresh=True)
    if outcome.error is not None:
        raise CannotMinify(f"the script cannot be tried here: {outcome.error}")
    return outcome.signature


def _write(
    cases_dir: Path,
    record: Mapping[str, Any],
    graph: str,
    inputs: Mapping[str, Any],
    expected: Signature,
    store: Path,
    graph_hash: str,
) -> CaseFolder:
    kept = {k: v for k, v in record.items() if k not in ("inputs", "kind", "tolerances")}
    calls = record.get("calls") or len(re.findall(r"^\s+\w+ = ", graph, re.MULTILINE))
    case = Case(
        id=case_id(fingerprint(expected), graph_hash, None, torch.__version__, graph),
        created=now(),
        torch=torch.__version__,
        device="cpu",
        kind=expected.kind,
        phase=expected.phase,
        direction=record.get("direction"),
        backend=str(record["backend"]),
        after=record["level"],
        signature=expected,
        graph=GraphFacts(calls, len(record["placeholders"])),
    )
    script = script_text({**record, "calls": calls}, graph, expected.to_json(), inputs=inputs, case=case.id)
    files: dict[str, str | Path] = {
        "graph.py": graph,
        "inputs.json": json.dumps(inputs, indent=1),
        "record.json": json.dumps(kept, indent=1),
        "original.py": script,
    }
    if store.is_dir():
        files["inputs"] = store
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


def _parts(text: str) -> tuple[str, dict[str, Any], list[str]]:
    """The graph, the user's definitions and the imports of a script of ours."""
    pieces = re.split(r"(?m)^# -{20,} ([^\n]+)\n", text)
    sections = dict(zip(pieces[1::2], pieces[2::2]))
    graph = next(body for title, body in sections.items() if title == "the graph")
    embedded = sections.get("from the program that failed", "")
    imports = [line for line in pieces[0].splitlines() if re.match(r"(import|from) ", line)]
    return graph.strip() + "\n", {"source": embedded.strip(), "imports": [], "notes": []}, imports
