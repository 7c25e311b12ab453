"""Writes docs/schemas.json: what `--json` prints, as JSON Schema, from the dataclasses that it is made of.

    python docs/schemas.py

A later torchsleuth may add fields, which a reader leaves alone; a field that changes its meaning or goes makes the
next VERSION.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchsleuth.core.cases.model import Case
from torchsleuth.front.observe.breaks import Breaks, GraphBreak, Tried
from torchsleuth.front.observe.profile import CudaGraph
from torchsleuth.front.observe.recompiles import FunctionRecompiles, Recompiles

VERSION = 1
FILE = Path(__file__).with_name("schemas.json")
PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", Path: "string"}
TEXT, NUMBER, FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}


def schemas() -> dict[str, Any]:
    """One document; `#/$defs/explain` is what `explain --json` prints."""
    defs: dict[str, Any] = {}
    case = of(Case, defs)
    run = {
        "run": TEXT, "path": TEXT, "program_status": NUMBER, "ended_early": FLAG, "seconds": {"type": "number"},
        "truncated": FLAG, "failed_compiles": {"type": "array"},
    }  # fmt: skip
    of(Breaks, defs), of(Recompiles, defs)
    tried, breaks = several(of(Tried, defs)), several(of(GraphBreak, defs))
    defs["show"] = {"allOf": [case, record(path=TEXT)]}
    defs["run"] = record(status=NUMBER, program_status=NUMBER, cases=several({"$ref": "#/$defs/show"}))
    counts = dict.fromkeys(
        ("graph_count", "graph_break_count", "op_count", "functions", "recompilations"), NUMBER
    )
    graphs = several(of(CudaGraph, defs))
    defs["explain"] = record(**run, **counts, breaks=breaks, tried=tried, cuda_graphs=graphs)
    counts = dict.fromkeys(("recompilations", "compiles", "compiled_functions"), NUMBER)
    defs["recompiles"] = record(**run, **counts, functions=several(of(FunctionRecompiles, defs)), tried=tried)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What torchsleuth prints with --json",
        "version": VERSION,
        "$defs": dict(sorted(defs.items())),
    }


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def several(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def of(kind: Any, defs: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type; that of a dataclass goes into `defs`, by its name."""
    if dataclasses.is_dataclass(kind):
        name = kind.__name__
        if name not in defs:
            defs[name] = {}
            hints = typing.get_type_hints(kind)
            fields = {
                each.name: of(hints[each.name], defs)
                for each in dataclasses.fields(kind)
                if each.name != "extra"
            }
            defs[name] = {**record(**fields), "description": (kind.__doc__ or "").partition("\n")[0]}
        return {"$ref": f"#/$defs/{name}"}
    if kind in PLAIN:
        return {"type": PLAIN[kind]}
    origin, given = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [of(each, defs) for each in given]}
    if origin in (tuple, list, Sequence) or (isinstance(origin, type) and issubclass(origin, (tuple, list))):
        same = len(given) == 1 or (len(given) == 2 and given[1] is ...)
        return several(of(given[0], defs) if same else {})
    if origin is Mapping or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return {"type": "object"}
    return {}


if __name__ == "__main__":
    FILE.write_text(json.dumps(schemas(), indent=1) + "\n")
