"""What a sweep has found out: one cell for each program and setting, kept in a log, and failures put into buckets.

Failures with one signature are one bucket, whichever programs and settings they were seen with. A signature that
does not say where it happened (wrong numbers, a signal, a hang) is a bucket for each program: else a second bug would
hide in it. Once failures are made small, those whose repros show one bug are put together again (`bug_of`, `merged`):
where the same part of the compiler fails in the same kind of way at the same calls, however values are named, whatever
sizes the inputs have, and whichever backend was put in. Numbers in the failing function itself count: `sum(0)` may be
another bug than `sum(1)`, and no bug may hide behind another.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torchsleuth.core.changes import Change
from torchsleuth.core.protocol.codec import Document, from_json
from torchsleuth.front.supervise.program_runs import ProgramRun
from torchsleuth.front.sweep.grid import SweptProgram
from torchsleuth.script_runtime.signature import Signature, fingerprint

PASSES, FAILS, LATE = "passes", "fails", "late"
# A case as case.json has it, told by the run that made it.
CaseDocument = Document
# Signatures of these kinds say what happened, not where.
ANYWHERE = ("accuracy", "crash", "hang")


@dataclass(frozen=True)
class Failure:
    """One failure that a run left: which bucket it is in, and its case."""

    bucket: str
    kind: str
    summary: str
    case: str | None = None
    calls: int | None = None


@dataclass(frozen=True)
class Cell:
    """How one program ended with one setting; `failures` only where it fails and its eager run does not."""

    key: str
    program: str
    setting: str
    answer: str
    seconds: float
    status: int
    failures: tuple[Failure, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Bucket:
    """Failures that are alike; `case` is what is known of the one that was looked into, as case.json has it.

    `bug` is what its repro shows, and `same` are the buckets whose repros show that, too.
    """

    key: str
    kind: str
    summary: str
    cells: tuple[tuple[str, str], ...]
    sample: tuple[str, str]
    case: CaseDocument | None = None
    why_not: str | None = None
    bug: str | None = None
    same: tuple[Bucket, ...] = ()

    @property
    def keys(self) -> set[str]:
        """This one, those put together with it, and the bug: whatever of them is known, the failure is."""
        return {*filter(None, (self.key, self.bug)), *(each.key for each in self.same)}


def key_of(program: SweptProgram, setting: Change, about: Mapping[str, object]) -> str:
    """What must be the same for an answer to count again: command, script, setting, versions and options."""
    what = [
        program.program.command,
        program.program.cwd,
        program.text,
        [setting.backend, setting.mode, setting.dtype, setting.uncompiled],
        dict(about),
    ]
    return _hash(json.dumps(what, sort_keys=True))


def bucket_of(signature: Signature, program: str) -> str:
    """The bucket that a failure of a program belongs to.

    >>> crash, error = Signature("crash", "run", signal="SIGSEGV"), Signature("compile_error", "compile", message="no")
    >>> bucket_of(crash, "a.py") == bucket_of(crash, "b.py"), bucket_of(error, "a.py") == bucket_of(error, "b.py")
    (False, True)
    """
    key = fingerprint(signature)
    return _hash(f"{key} {program}") if signature.kind in ANYWHERE else key


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def cell_of(key: str, program: SweptProgram, setting: Change, run: ProgramRun) -> Cell:
    """What a run says; a program that ends badly without a case is a bucket by how it ended.

    >>> run = ProgramRun(1, 2.0, tail="ValueError: no")
    >>> cell_of("k", SweptProgram("a.py", None), Change(), run).failures[0].summary
    'the program ends with status 1: ValueError'
    """
    failures = tuple(
        Failure(
            bucket_of(signature, program.name),
            str(case["kind"]),
            signature.summary,
            str(case["id"]),
            _calls(case),
        )
        for case, signature in zip(run.cases, run.signatures)
    )
    last = next((line for line in reversed(run.tail.splitlines()) if line.strip()), "")[:300]
    if run.timed_out and not failures:
        return Cell(key, program.name, setting.name, LATE, run.seconds, run.status, (), "not done in time")
    if run.healthy and not failures:
        return Cell(key, program.name, setting.name, PASSES, run.seconds, run.status)
    if not failures:
        how = f"the program ends with status {run.status}" + (f": {run.last_word}" if run.last_word else "")
        failures = (Failure(_hash(f"{how} {program.name}"), "status", how),)
    return Cell(key, program.name, setting.name, FAILS, run.seconds, run.status, failures, last)


def _calls(case: CaseDocument) -> int | None:
    graph = case.get("graph")
    return graph.get("calls") if isinstance(graph, dict) else None


def buckets_of(cells: Iterable[Cell], looked_into: Mapping[str, CaseDocument]) -> list[Bucket]:
    """The failures by how they fail; the sample is the one with the smallest graph."""
    seen: dict[str, list[tuple[Cell, Failure]]] = {}
    for cell in cells:
        for failure in cell.failures:
            seen.setdefault(failure.bucket, []).append((cell, failure))
    found = []
    for key, members in seen.items():
        sample, first = min(
            members, key=lambda m: (m[1].calls is None, m[1].calls or 0, m[0].seconds, m[0].program)
        )
        known = looked_into.get(key, {})
        where = tuple(dict.fromkeys((cell.program, cell.setting) for cell, _ in members))
        at = (sample.program, sample.setting)
        found.append(
            Bucket(
                key,
                first.kind,
                first.summary,
                where,
                at,
                known.get("case"),
                known.get("why_not"),
                known.get("bug"),
            )
        )
    return found


class SweepLog:
    """What was found out so far, one JSON line each, on disk at once: the same command goes on from it.

    Used as `log = SweepLog(folder / "results.jsonl"); log.add_cell(cell); log.cells[cell.key]`.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self.path = path
        self.cells: dict[str, Cell] = {}
        self.looked_into: dict[str, CaseDocument] = {}
        if fresh:
            path.unlink(missing_ok=True)
        elif path.is_file():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                self._read(line)

    def _read(self, line: str) -> None:
        try:  # the last line of a sweep that was killed may be half a line
            document = json.loads(line)
            if "bucket" in document:
                self.looked_into[str(document["bucket"])] = document
            else:
                cell = from_json(Cell, document)
                self.cells[cell.key] = cell
        except (ValueError, TypeError):
            pass

    def add_cell(self, cell: Cell) -> None:
        self.cells[cell.key] = cell
        self._write(dataclasses.asdict(cell))

    def add_look(
        self, bucket: str, case: CaseDocument | None, why_not: str | None, bug: str | None = None
    ) -> None:
        """What came of looking into one failure of a bucket."""
        document = {"bucket": bucket, "case": case, "why_not": why_not, "bug": bug}
        self.looked_into[bucket] = document
        self._write(document)

    def _write(self, document: CaseDocument) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(document) + "\n")


# A repro that is larger was not made small.
MOST_TEXT = 200_000


def bug_of(case: CaseDocument, script: str) -> str | None:
    """The bug that a case with this repro shows, as a key; None where the repro cannot be read.

    >>> first = "f = torch.compile(lambda x: x.relu().sum(1), backend='eager')\\nf(torch.ones(3, 4))"
    >>> other = "g = torch.compile(lambda a: a.relu().sum(1))\\ng(torch.ones(2))"
    >>> bug_of({"kind": "crash"}, first) == bug_of({"kind": "crash"}, other) != bug_of({"kind": "hang"}, other)
    True
    """
    try:
        tree = ast.parse(script) if len(script) < MOST_TEXT else ast.Module([], [])
        plain = _Plain(tree)
        calls = [ast.unparse(plain.visit(each)) for each in _what_runs(tree)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    triage = case.get("triage") or {}
    blamed = [str(case.get("kind")), str(triage.get("component")), str(triage.get("part"))]
    return hashlib.sha256("\n".join([*blamed, *calls]).encode()).hexdigest()[:16] if calls else None


def merged(buckets: Iterable[Bucket]) -> list[Bucket]:
    """Buckets of one bug as one, the widespread first; the others stand in its `same`."""
    alike: dict[str, list[Bucket]] = {}
    for bucket in buckets:
        alike.setdefault(bucket.bug or bucket.key, []).append(bucket)
    found = []
    for members in alike.values():
        first, *rest = sorted(members, key=_order)
        cells = tuple(dict.fromkeys(cell for each in members for cell in each.cells))
        found.append(replace(first, cells=cells, same=tuple(rest)))
    return sorted(found, key=_order)


def _order(bucket: Bucket) -> tuple[int, str, tuple[tuple[str, str], ...]]:
    return -len(bucket.cells), bucket.summary, bucket.cells


def _what_runs(tree: ast.Module) -> Iterator[ast.stmt]:
    """Definitions, inputs and the failing calls, without imports and what the script says about the failure."""
    for statement in tree.body:
        if isinstance(statement, ast.Try):
            yield from statement.body
            return
        text = ast.unparse(statement)
        if text.startswith("shown = "):  # from here on, results are compared
            return
        if not text.startswith(("import ", "from ", "EXPECTED = ", "print(", "'", '"')):
            yield statement


class _Plain(ast.NodeTransformer):
    """Names that the script gives, by number; outside of functions, sizes and values as 0, and no backend."""

    def __init__(self, tree: ast.Module) -> None:
        given = (
            getattr(node, "arg" if isinstance(node, ast.arg) else "name", None)
            for node in ast.walk(tree)
            if isinstance(node, ast.arg | ast.FunctionDef | ast.ClassDef)
        )
        stored = (n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        self.given = {*given, *stored}
        self.numbers: dict[str, str] = {}
        self.inside = False

    def _named(self, name: str) -> str:
        return self.numbers.setdefault(name, f"v{len(self.numbers)}") if name in self.given else name

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._named(node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(self._named(node.arg))

    def _definition(self, node: ast.FunctionDef | ast.ClassDef) -> ast.AST:
        node.decorator_list = [self.visit(each) for each in node.decorator_list]
        decorators, node.decorator_list = node.decorator_list, []
        node.name, outside, self.inside = self._named(node.name), self.inside, True
        self.generic_visit(node)
        node.decorator_list, self.inside = decorators, outside
        return node

    visit_FunctionDef = visit_ClassDef = _definition

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        outside, self.inside = self.inside, True
        self.generic_visit(node)
        self.inside = outside
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.keywords = [each for each in node.keywords if each.arg != "backend"]
        self.generic_visit(node)
        if not self.inside and node.args and all(map(_is_zero, node.args)):
            node.args = node.args[:1]
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        number = isinstance(node.value, int | float | complex) and not isinstance(node.value, bool)
        return ast.Constant(0) if number and not self.inside else node

    def _several(self, node: ast.Tuple | ast.List) -> ast.AST:
        self.generic_visit(node)
        folds = not self.inside and isinstance(node.ctx, ast.Load) and all(map(_is_zero, node.elts))
        return ast.Constant(0) if folds else node

    visit_Tuple = visit_List = _several

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return node.operand if not self.inside and _is_zero(node.operand) else node


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0 and not isinstance(node.value, bool)
