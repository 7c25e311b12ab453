"""A script becomes a case: one that torchsleuth wrote, one of PyTorch's own minifier, or any program that fails.

A script of ours says what it expects; another is tried once, and how it fails is what is looked for from then on.
"""

from __future__ import annotations

import ast
import re
import tempfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torchsleuth.core.cases.folder import CaseFolder, now, write_case
from torchsleuth.core.cases.model import Case, GraphFacts, case_id
from torchsleuth.core.cases.record import Embedded, GraphRecord
from torchsleuth.core.protocol.trials import Trial
from torchsleuth.script_runtime.signature import Signature, fingerprint, signature_from_json
from torchsleuth.search.minify.case_state import CannotMinify
from torchsleuth.search.minify.oracle import NoAnswer, Questions
from torchsleuth.search.minify.python.program_case import PLAINLY, FirstRun, case_of_program
from torchsleuth.search.workers.queue import TrialQueue
from torchsleuth.torch_core.repro.assemble import graph_files
from torchsleuth.torch_internals.minifier_scripts import is_foreign


def case_of_script(
    script: Path, cases_dir: Path, questions: Questions, how: FirstRun = PLAINLY
) -> CaseFolder:
    """The case that a script stands for, written into `cases_dir`.

    Of torchsleuth's own, one of PyTorch's, or any program: `case_of_script(Path("train.py"), cases, questions)`.
    """
    try:
        text = script.read_text(encoding="utf-8")
        literals = _literals(text)
    except (OSError, ValueError, SyntaxError) as error:
        raise CannotMinify(f"{script} cannot be read as a Python program: {error}") from error
    if is_foreign(text):
        return _adopt_foreign(script, cases_dir, questions)
    if "FACTS" not in literals or "EXPECTED" not in literals:
        return case_of_program(script, cases_dir, questions, how)
    graph, embedded, imports = _parts(text)
    record = replace(
        GraphRecord.from_json(literals["FACTS"]), imports=imports, embedded=embedded, hash="script"
    )
    expected = signature_from_json(literals["EXPECTED"])
    return _write(cases_dir, record, graph, expected, script.parent / "inputs")


def _adopt_foreign(script: Path, cases_dir: Path, questions: Questions) -> CaseFolder:
    with tempfile.TemporaryDirectory(prefix="torchsleuth-") as scratch:
        store = Path(scratch)
        try:
            told = questions.foreign_script(script, store)
        except NoAnswer as why:
            raise CannotMinify(f"{script} cannot be read as a script of PyTorch's minifier ({why})") from why
        record = GraphRecord.from_json({**told, "options": {}, "direction": "forward"})
        expected = _observed(record, told["graph"], store, questions.workers, told["accuracy"])
        if expected is None:
            raise CannotMinify(f"{script} does not fail here, so there is nothing to make smaller")
        return _write(cases_dir, record, told["graph"], expected, store)


def _observed(
    record: GraphRecord, graph: str, store: Path, workers: TrialQueue, accuracy: bool
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
        id=case_id(fingerprint(expected), record.hash, None, version("torch"), graph),
        created=now(),
        torch=version("torch"),
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
