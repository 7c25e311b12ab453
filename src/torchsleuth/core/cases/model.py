"""case.json as values: what was caught, and what became of it so far.

`Case` mirrors the contract's document field by field; a section whose work was not done is None, one that
failed carries `error`.  Reading checks every type, because a case may come from a stranger, and keeps keys
it does not know in `extra`, because a case may come from a later torchsleuth of the same schema. Every way in which a
case.json can be unreadable is told apart.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchsleuth.core.cases.door import NotRead, json_inside
from torchsleuth.core.cases.errors import DamagedCase, NewerSchema
from torchsleuth.core.changes import Change
from torchsleuth.core.protocol import codec
from torchsleuth.core.protocol.codec import Document
from torchsleuth.script_runtime.signature import Signature

SCHEMA = 1
KINDS = ("compile_error", "runtime_error", "accuracy", "crash", "hang", "capture_error")
PHASES = ("capture", "compile", "run")
DIRECTIONS = ("forward", "backward", "inference")
AFTER = ("dynamo", "aot")
ID = re.compile(r"[0-9a-f]{8}")
# A real case.json has a few kilobytes; one of this size is not ours and would only fill the memory.
MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class GraphFacts:
    """What the captured graph is: call nodes, inputs, and the user's lines it comes from."""

    calls: int
    inputs: int
    source_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Triage:
    """Who is at fault: the component, the part of it, the operators, and the user's line; each found by trying.

    `pinned` is True where leaving out just that part made the failure vanish, or where the compiler stopped in it.
    """

    component: str | None = None
    part: str | None = None
    ops: tuple[str, ...] = ()
    user_line: str | None = None
    seconds: float | None = None
    error: str | None = None
    not_narrowed: str | None = None  # why there is no line, though a graph has many
    detail: str | None = None  # one sentence for a person
    pinned: bool = False
    subsystem: str | None = None  # where torch has a switch for it, e.g. "post_grad_passes"
    application: int | None = None  # the n-th application of that subsystem, from 1
    flags: tuple[str, ...] = ()  # settings without which it does not fail, or with which it passes
    nodes: tuple[str, ...] = ()  # of the case's graph
    code: str | None = None  # the source line itself
    with_lines: tuple[str, ...] = ()  # the others that the failure needs, each with its code, in order
    function: str | None = None
    module: str | None = None  # e.g. "encoder.layers.3.mlp"
    forward_op: str | None = None  # of a backward graph: the call it is the gradient of
    labels: tuple[str, ...] = ()  # as PyTorch's own triage would put them
    trials: int | None = None
    rungs: tuple[Rung, ...] = ()


@dataclass(frozen=True)
class Rung:
    """One experiment of a triage: what was changed, and what came of it."""

    what: str
    answer: str  # "fails", "passes", "fails differently" or "cannot tell"
    seconds: float


@dataclass(frozen=True)
class Minified:
    """How small the failing graph became."""

    calls: int | None = None
    inputs: int | None = None
    ops: tuple[str, ...] = ()
    queries: int | None = None
    seconds: float | None = None
    input_bytes: int | None = None
    lines: int | None = None
    program_lines: int | None = (
        None  # of a program made small as Python: its own, without what tells how it fails
    )
    error: str | None = None


@dataclass(frozen=True)
class Verified:
    """How often the repro was run in a fresh process, and with what result."""

    times: int | None = None
    reproduced: int | None = None
    same_signature: bool | None = None
    error: str | None = None
    eager_passes: bool | None = None  # whether it passes without the compiler; None where that was not asked


@dataclass(frozen=True)
class Workaround:
    """Something that was tried to make the user's graph pass; `how` is the exact line to paste."""

    name: str
    how: str
    verified: bool
    error: str | None = None
    disables: str | None = None  # what it switches off
    cost: float | None = None  # time of a run against full compilation, where both can be timed
    program: bool | None = (
        None  # whether the user's whole program passed with it; None where it was not tried
    )
    seconds: float | None = None  # that trying it took

    @staticmethod
    def of(
        change: Change,
        error: str | None,
        *,
        cost: float | None = None,
        program: bool | None = None,
        seconds: float | None = None,
    ) -> Workaround:
        """What came of a change that was tried, verified where no error says why not: `Workaround.of(RANDOM, None)`."""
        passed = error is None
        return Workaround(change.name, change.how, passed, error, change.disables, cost, program, seconds)


@dataclass(frozen=True)
class Analyzed:
    """Where a wrong result begins, in short; all of it is in analysis.json.

    `clean` where nothing is off and two runs do not differ.
    """

    words: str
    node: str | None = None
    op: str | None = None
    kernel: str | None = None
    user_line: str | None = None
    off: float | None = None
    noise: float | None = None
    confirmed: bool | None = None
    recovers: bool | None = None
    clean: bool = False
    seconds: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class Case:
    """One caught failure: the content of case.json."""

    id: str
    created: str
    torch: str
    device: str
    kind: str
    phase: str
    direction: str | None
    backend: str
    after: str | None
    signature: Signature
    graph: GraphFacts | None = None
    triage: Triage | None = None
    minified: Minified | None = None
    verified: Verified | None = None
    workarounds: tuple[Workaround, ...] | None = None
    analysis: Analyzed | None = None
    error: str | None = None
    schema: int = SCHEMA
    seen: int = 1  # how often this failure was caught
    last_seen: str | None = None
    rank: str | None = None  # of a distributed program, e.g. "1"; of several that fail alike "0, 1"
    script: tuple[str, ...] = ()  # the program's argv
    kept: Document | None = None  # which input values are kept, and why
    no_repro: str | None = None  # why there is no original.py
    extra: Document = field(default_factory=dict)

    @property
    def on_ranks(self) -> str:
        """Where it was seen: `" on rank 0"`, `" on ranks 0, 1"`, or nothing of a program without ranks."""
        return "" if self.rank is None else f" on rank{'s' if ',' in self.rank else ''} {self.rank}"

    def to_json(self) -> dict[str, object]:
        """The document of the contract: `json.dumps(case.to_json())`."""
        doc = codec.plain(self)
        extra = doc.pop("extra")
        return {"schema": doc.pop("schema"), **doc, **{k: v for k, v in extra.items() if k not in doc}}


def case_id(fingerprint: str, graph_hash: str, *more: str) -> str:
    """Eight hex digits for one failure of one graph, on whichever rank: `case_id(fingerprint(sig), graph_hash)`."""
    key = json.dumps([fingerprint, graph_hash, None, *more])
    return hashlib.sha256(key.encode()).hexdigest()[:8]


def case_from_json(doc: object, where: Path | str = "case.json") -> Case:
    """The case of a parsed document, every type checked: `case_from_json(case.to_json()) == case`."""
    if not isinstance(doc, dict):
        raise DamagedCase(where, "it is not a JSON object")
    schema = doc.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise DamagedCase(where, "its 'schema' is missing or not a positive number")
    if schema > SCHEMA:
        raise NewerSchema(where, min(schema, 10**9), SCHEMA)
    try:
        case = codec.from_json(Case, {**doc, "extra": {}})
    except codec.WrongShape as failure:
        raise DamagedCase(where, str(failure)) from None
    known = {f.name for f in dataclasses.fields(Case)}
    case = dataclasses.replace(case, extra={k: v for k, v in doc.items() if k not in known})
    for name, allowed in (("kind", KINDS), ("phase", PHASES), ("direction", DIRECTIONS), ("after", AFTER)):
        value = getattr(case, name)
        if value not in allowed and not (value is None and name in ("direction", "after")):
            raise DamagedCase(where, f"its {name!r} is none of {', '.join(allowed)}")
    if not ID.fullmatch(case.id):
        raise DamagedCase(where, "its 'id' is not eight hexadecimal digits")
    return case


def best_workaround(found: Sequence[Workaround]) -> Workaround | None:
    """The one to show first: verified, and not one that the whole program refused.

    >>> best_workaround([Workaround("a", "a = 1", True, program=False), Workaround("b", "b = 1", True)]).name
    'b'
    """
    good = [each for each in found if each.verified and each.program is not False]
    return next((each for each in good if each.program), good[0] if good else None)


def read_case(folder: Path) -> Case:
    """The case in this folder: `read_case(Path("torchsleuth-cases/1a2b3c4d")).kind`."""
    return case_from_json(case_document(folder), folder)


def case_document(folder: Path) -> dict[str, object]:
    """The JSON object in a folder's case.json, not yet checked field by field."""
    try:
        doc = json_inside(folder, "case.json", MAX_BYTES)
    except NotRead as failure:
        raise DamagedCase(folder, str(failure)) from failure
    if not isinstance(doc, dict):
        raise DamagedCase(folder, "case.json is not a JSON object")
    return doc
