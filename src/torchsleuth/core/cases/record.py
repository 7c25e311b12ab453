"""A recorded graph and the settings it was compiled under, as values: what `record.json` of a case holds.

The watched process writes one before the compiler starts; scripts, searches and triage read it. JSON is the edge: what
another version left out of a record has its default here, and everybody between reads attributes. Needs no torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from torchsleuth.core.cases.door import NotRead, json_inside
from torchsleuth.core.protocol.codec import Document, plain
from torchsleuth.torch_core.graphs.source_line import SourceLine

# A script hands the object of this name to torch.compile, in place of a backend's name.
_BACKEND = re.compile(r"^(?:def |class )?backend(?: =|\(|:)|\b(?:as|import) backend$", re.MULTILINE)

# The variable in which the program of a wrong capture holds what differs from eager.
WRONG = "wrong"


@dataclass(frozen=True)
class AmbientState:
    """The process-wide switches of torch under which a graph was compiled; the defaults are torch's."""

    grad: bool = True
    inference_mode: bool = False
    default_dtype: str = "torch.float32"
    # Captured graphs name the device of everything they make; the user's text does not.
    default_device: str = "cpu"
    matmul_precision: str = "highest"
    deterministic: bool = False
    autocast: Mapping[str, str] = field(default_factory=dict)
    # Of the CPU's random numbers before the call: base64 of the compressed bytes; kept where a script needs them only.
    rng: str | None = None

    def lines(self, device: bool = False) -> list[str]:
        """The statements that set the switches which hold for a whole process, where they are not at their default.

        >>> AmbientState(deterministic=True, default_device="cuda").lines()
        ['torch.use_deterministic_algorithms(True)']
        """
        default = AmbientState()
        found = []
        if self.default_dtype != default.default_dtype:
            found.append(f"torch.set_default_dtype({self.default_dtype})")
        if device and self.default_device != default.default_device:
            found.append(f"torch.set_default_device({self.default_device!r})")
        if self.matmul_precision != default.matmul_precision:
            found.append(f"torch.set_float32_matmul_precision({self.matmul_precision!r})")
        if self.deterministic:
            found.append("torch.use_deterministic_algorithms(True)")
        return found


@dataclass(frozen=True)
class CompileSettings:
    """How a graph is compiled: at which level ("dynamo" or "aot"), by whom, and under which settings of torch.

    Values of `options` and `config` are Python text. `state` is None where nobody said what it was;
    `visible_outputs` are the places of the outputs that the user sees, None where the graph does not mark any. Where
    `parted`, it was compiled for inputs that share no memory, and called with others that do. Where `forward_only`, the
    program's backward is no part of the failure: eager passes until a gradient is asked for. Where `sanitized`, its C++
    is built with sanitizers.
    """

    level: str = "dynamo"
    backend: str = "inductor"
    direction: str = "forward"
    options: Mapping[str, str] = field(default_factory=dict)
    compile_kwargs: Document = field(default_factory=dict)
    config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    state: AmbientState | None = None
    visible_outputs: tuple[int, ...] | None = None
    parted: bool = False
    forward_only: bool = False
    sanitized: bool = False

    def to_json(self) -> dict[str, object]:
        """The settings under the names that records and scripts use.

        >>> CompileSettings(level="aot").to_json()["output_meta"]
        {}
        """
        visible = self.visible_outputs
        return {
            "level": self.level,
            "backend": self.backend,
            "direction": self.direction,
            "options": dict(self.options),
            "compile_kwargs": dict(self.compile_kwargs),
            "config": {module: dict(values) for module, values in self.config.items()},
            "state": {} if self.state is None else plain(self.state),
            "parted": self.parted,
            "forward_only": self.forward_only,
            "output_meta": {} if visible is None else {"user_visible_output_idxs": list(visible)},
            **({"sanitized": True} if self.sanitized else {}),
        }

    @staticmethod
    def from_json(doc: Document) -> CompileSettings:
        """The settings of a record or of a script's facts: `CompileSettings.from_json({"level": "aot"}).level`."""
        given = _known(CompileSettings, doc)
        given["state"] = AmbientState(**_known(AmbientState, doc["state"])) if doc.get("state") else None
        visible = (doc.get("output_meta") or {}).get("user_visible_output_idxs")
        return CompileSettings(**given, visible_outputs=None if visible is None else tuple(visible))


@dataclass(frozen=True)
class Embedded:
    """The user's definitions that a script carries: `imports` first, then `source`; `notes` say where from, and what
    they need."""

    source: str = ""
    imports: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def defines_backend(self) -> bool:
        """Whether the backend is the user's own.

        >>> Embedded("def backend(graph, inputs): ...").defines_backend
        True
        """
        return any(_BACKEND.search(text) for text in (self.source, *self.imports))

    @staticmethod
    def from_json(doc: Document) -> Embedded:
        """`Embedded.from_json({"source": "x = 1"}).source == "x = 1"`."""
        return Embedded(str(doc.get("source") or ""), _texts(doc, "imports"), _texts(doc, "notes"))


@dataclass(frozen=True)
class GraphRecord:
    """One graph as it was before the compiler touched it, less its text.

    `nodes` are the user's lines; where there are none, `called_from` is the line that called the model, and `modules`
    holds what of it is known of each node. `outer` is the number of the graph that Dynamo captured, of a graph after
    AOTAutograd. `inputs` and `constants` are descriptions of tensors, as `tensors.specs` writes them.
    """

    settings: CompileSettings
    number: int = 0
    compile_id: str | None = None
    function: str | None = None
    outer: int | None = None
    versions: Document = field(default_factory=dict)
    hash: str = ""
    source_lines: tuple[str, ...] = ()
    placeholders: tuple[str, ...] = ()
    no_repro: str | None = None
    program: Document = field(default_factory=dict)
    calls: int = 0
    ops: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    constants: Document = field(default_factory=dict)
    nodes: Mapping[str, SourceLine] = field(default_factory=dict)
    called_from: SourceLine | None = None
    modules: Mapping[str, Document] = field(default_factory=dict)
    embedded: Embedded = field(default_factory=Embedded)
    inputs: Document | None = None

    @property
    def lines(self) -> dict[str, SourceLine]:
        """The user's line of each node; of a model made of a library's modules, the line that calls it."""
        called = self.called_from
        found = {} if called is None else {n: replace(called, **known) for n, known in self.modules.items()}
        return {**found, **self.nodes}

    def to_json(self) -> dict[str, object]:
        """What `record.json` holds; what most records lack is left out where it is empty.

        >>> record = GraphRecord(CompileSettings(level="aot"), placeholders=("x",))
        >>> GraphRecord.from_json(record.to_json()) == record
        True
        """
        doc = plain(self)
        doc.update(embedded=None if self.embedded == Embedded() else doc["embedded"])
        seldom = ("called_from", "modules", "embedded", "inputs")
        kept = {key: value for key, value in doc.items() if key not in seldom or value}
        return {"number": kept.pop("number"), **kept.pop("settings"), **kept}

    @staticmethod
    def from_json(doc: Document) -> GraphRecord:
        """The record that some version of torchsleuth wrote, or what is known of a script's graph."""
        given = _known(GraphRecord, doc)
        for key in ("source_lines", "placeholders", "ops", "imports"):
            given[key] = _texts(doc, key)
        given["nodes"] = {name: _line(line) for name, line in (doc.get("nodes") or {}).items()}
        given["called_from"] = _line(doc["called_from"]) if doc.get("called_from") else None
        given["embedded"] = Embedded.from_json(doc.get("embedded") or {})
        return GraphRecord(CompileSettings.from_json(doc), **given)


def read_record(path: Path) -> GraphRecord:
    """The record in a file; raises a ValueError: `read_record(folder.file("record.json")).settings.backend`."""
    doc = json_inside(path.parent, path.name)
    try:
        return GraphRecord.from_json(doc)
    except (TypeError, AttributeError, LookupError) as failure:
        raise NotRead(f"{path.name} does not describe a graph ({failure})") from failure


def record_at(folder: Path) -> GraphRecord | None:
    """The record in a folder; None where none can be read there: `record_at(Path("/no/such")) is None`."""
    try:
        return read_record(folder / "record.json")
    except ValueError:
        return None


def _line(doc: Document) -> SourceLine:
    line = SourceLine(**_known(SourceLine, doc))
    return replace(line, file=os.path.expanduser(line.file)) if line.file.startswith("~") else line


def _known(record: type, doc: Document) -> dict[str, Any]:
    """Those entries that the record has a field for, less what stands there as null."""
    names = {each.name for each in fields(record)}
    return {key: value for key, value in doc.items() if key in names and value is not None}


def _texts(doc: Document, key: str) -> tuple[str, ...]:
    return tuple(map(str, doc.get(key) or ()))
