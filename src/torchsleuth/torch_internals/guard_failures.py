"""Why compiled code was not used again: every guard of it that says no, with what it expects and what it found.

torch's own report stops at the first guard that fails. Here each guard is read as torch writes it and looked at by
itself; a guard that cannot be read that way is left to torch's report, which is kept as well.

Versions: guards as text (`code_parts`) and `check_verbose` are there in 2.11 to 2.13; the forms read here are 2.13's.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

MOST_ENTRIES = 16
MOST_GUARDS = 60
MOST_TEXT = 200

_TENSOR = re.compile(
    r"check_tensor\((?P<source>.+?), (?P<type>\w+), DispatchKeySet\((?P<keys>[^)]*)\), (?P<dtype>torch\.\w+), "
    r"device=(?P<device>\w+), requires_grad=(?P<grad>\w+), size=\[(?P<size>[^\]]*)\], stride=\[(?P<stride>[^\]]*)\]\)"
)
_IDENTITY = re.compile(
    r"___check_(?P<what>type|obj)_id\((?P<source>.+), (?P<id>\d+)\)(?:, type=(?P<type>.*))?"
)
_STATE = re.compile(r"___check_global_state\(\) against (?P<state>\{.*\})")
_SIZE = re.compile(r"(?P<source>[LG]\[[^ ()]*?)\.size\(\)\[(?P<index>\d+)\]")
_MISMATCH = re.compile(
    r"tensor '(?P<source>.+)' (?P<what>size|stride|dtype|requires_grad|rank|dispatch key set) mismatch"
    r"(?: at index (?P<index>\d+))?\. expected (?P<expected>.*?),? actual (?P<actual>.*)"
)


@dataclass(frozen=True)
class GuardFailure:
    """One guard that said no: `kind` is what it is about, `source` the value it looked at, as torch names it.

    `index` is the dimension, where it is about one.
    """

    kind: str
    source: str
    expected: str
    actual: str
    guard: str
    index: int | None = None


@dataclass(frozen=True)
class RefusedEntry:
    """One compiled version of a function that was not used, and the guards that said no."""

    compile_id: str
    failures: tuple[GuardFailure, ...]


def refused_entries(entries: Sequence[Any], frame: Any, backend: Any) -> tuple[RefusedEntry, ...]:
    """Why none of the compiled versions in `entries` fits the call of `frame`. Changes nothing."""
    return tuple(
        RefusedEntry(
            str(getattr(entry, "compile_id", "?")), tuple(_failures(entry, frame, backend))[:MOST_GUARDS]
        )
        for entry in entries[:MOST_ENTRIES]
    )


def _failures(entry: Any, frame: Any, backend: Any) -> Iterator[GuardFailure]:
    manager = entry.guard_manager
    gone = getattr(manager, "invalidation_reason", None)
    if gone is not None:
        freed = re.search(r"because (.+?) got deallocated", str(gone))
        whose = freed[1].strip("'\"`") if freed else ""
        yield GuardFailure("freed object", whose, "an object that was still there", str(gone), str(gone))
        return
    scope = {**(getattr(manager, "closure_vars", None) or {})}
    outer = getattr(manager, "global_scope", None) or {}
    scope.update({"L": frame.f_locals, "G": outer.get("G", getattr(frame, "f_globals", {}))})
    found = False
    for part in getattr(manager, "code_parts", None) or ():
        for failure in _look(str(part).partition("  #")[0].strip(), scope):
            found = True
            yield failure
    if not found:
        yield from _as_torch_says(entry, frame, backend, scope)


def _look(guard: str, scope: Mapping[str, Any]) -> Iterator[GuardFailure]:
    """What one guard has to object, if it can be read."""
    tensor, identity, state = _TENSOR.match(guard), _IDENTITY.match(guard), _STATE.match(guard)
    try:
        if tensor is not None:
            yield from _tensor(tensor, _value(tensor["source"], scope), guard)
        elif identity is not None:
            yield from _identity(identity, _value(identity["source"], scope), guard)
        elif state is not None:
            yield from _state(json.loads(state["state"]), guard)
        else:
            yield from _expression(guard, scope)
    except Exception:  # a guard of another form, or a value that is not there: torch's own report is asked
        return


def _tensor(expected: re.Match[str], value: Any, guard: str) -> Iterator[GuardFailure]:
    source = expected["source"]
    if not isinstance(value, torch.Tensor):
        yield GuardFailure("type", source, expected["type"], type(value).__name__, guard)
        return
    facts = (
        ("tensor class", expected["type"], type(value).__name__),
        ("dtype", expected["dtype"], str(value.dtype)),
        ("requires_grad", expected["grad"], str(value.requires_grad)),
    )
    for kind, wanted, given in facts:
        if wanted != given:
            yield GuardFailure(kind, source, wanted, given, guard)
    # The first of the keys is that of the device.
    device = expected["keys"].partition(",")[0].lower()
    if device in ("cpu", "cuda", "mps", "xpu", "hpu", "meta") and device != value.device.type:
        yield GuardFailure("device", source, device, str(value.device), guard)
    elif expected["device"] not in ("None", str(value.device.index)):
        yield GuardFailure("device", source, expected["device"], str(value.device), guard)
    size = _numbers(expected["size"])
    if len(size) != value.dim():
        yield GuardFailure("rank", source, f"{len(size)} dimensions", f"{value.dim()} dimensions", guard)
        return
    resized = False
    for index, (want, have) in enumerate(zip(size, value.shape)):
        if want is not None and want != have:
            resized = True
            yield GuardFailure("shape", source, str(want), str(int(have)), guard, index)
    # Of a tensor of another size the strides are others, too.
    if not resized and value.layout is torch.strided:
        for index, (want, have) in enumerate(zip(_numbers(expected["stride"]), value.stride())):
            if want is not None and want != have:
                yield GuardFailure("stride", source, str(want), str(int(have)), guard, index)


def _identity(expected: re.Match[str], value: Any, guard: str) -> Iterator[GuardFailure]:
    wanted, what = int(expected["id"]), expected["type"] or ""
    if expected["what"] == "type" and id(type(value)) != wanted:
        yield GuardFailure("type", expected["source"], _quoted(what) or what, type(value).__name__, guard)
    elif expected["what"] == "obj" and id(value) != wanted:
        named = _quoted(what) or "object"
        wanted_one = f"the {'function' if named == 'code' else named} it was compiled with"
        yield GuardFailure("object identity", expected["source"], wanted_one, _short(value), guard)


def _quoted(text: str) -> str | None:
    """The name of a class in `<class 'int'>`."""
    found = re.search(r"'(?:[\w.]*\.)?(\w+)'", text)
    return found[1] if found else None


def _state(expected: Mapping[str, Any], guard: str) -> Iterator[GuardFailure]:
    guards: Any = importlib.import_module("torch._C._dynamo.guards")
    now = json.loads(guards.GlobalStateGuard().__getstate__())
    for name, wanted in expected.items():
        # Whoever looks from inside Dynamo finds __torch_function__ switched off.
        if name in now and now[name] != wanted and not name.startswith("torch_function"):
            yield GuardFailure(
                name.removesuffix("_state").replace("_", " "), "", _short(wanted), _short(now[name]), guard
            )


def _expression(guard: str, scope: Mapping[str, Any]) -> Iterator[GuardFailure]:
    """A guard that is Python: `L['n'] == 3`, `2 <= L['x'].size()[0]`, `not ___dict_contains(...)`."""
    tree = ast.parse(guard, mode="eval").body
    if bool(_value(guard, scope)):
        return
    size = _SIZE.search(guard)
    equal = isinstance(tree, ast.Compare) and len(tree.ops) == 1 and isinstance(tree.ops[0], ast.Eq)
    if size is not None:
        have, index = _short(_value(size[0], scope)), int(size["index"])
        yield GuardFailure("shape" if equal else "shape bound", size["source"], guard, have, guard, index)
    elif isinstance(tree, ast.Compare) and equal:
        left, right = ast.unparse(tree.left), ast.unparse(tree.comparators[0])
        kind = "length" if left.startswith("len(") else "dynamic mark" if "_dynamo_" in left else "value"
        owner = tree.left.value if isinstance(tree.left, ast.Attribute) else None
        if owner is not None and isinstance(_value(ast.unparse(owner), scope), torch.nn.Module):
            kind = "module attribute"
        yield GuardFailure(kind, left, _short(_value(right, scope)), _short(_value(left, scope)), guard)
    else:
        asks = isinstance(tree, ast.Compare) and any(isinstance(n, ast.BinOp) for n in ast.walk(tree))
        kind = "dict keys" if "dict_contains" in guard else "condition" if asks else "other"
        yield GuardFailure(kind, guard, "true", "false", guard)


def _as_torch_says(entry: Any, frame: Any, backend: Any, scope: Mapping[str, Any]) -> Iterator[GuardFailure]:
    """Where no guard could be read: the first that failed, as torch reports it, or another backend.

    Guards on sizes are one guard of many parts.
    """
    report = entry.guard_manager.check_verbose(frame.f_locals)
    parts = (
        [] if report.result else [str(part).partition("  #")[0].strip() for part in report.verbose_code_parts]
    )
    read = [failure for part in parts for failure in _look(part, scope)]
    yield from read
    for text in [] if read else parts:
        match = _MISMATCH.match(text)
        if match is not None:
            kind = {"size": "shape", "dispatch key set": "dispatch keys"}.get(match["what"], match["what"])
            index = int(match["index"]) if match["index"] else None
            yield GuardFailure(kind, match["source"], match["expected"], match["actual"], text, index)
        elif text.startswith("GLOBAL_STATE changed:"):
            yield GuardFailure(
                text.partition(":")[2].strip().replace("_", " "), "", "as it was", "changed", text
            )
        elif "Duplicate tensor" in text:
            yield GuardFailure("aliasing", "", "different tensors", "the same tensor twice", text)
        else:
            yield GuardFailure("other", "", "true", "false", text[: 2 * MOST_TEXT])
    if report.result and getattr(entry, "backend", backend) is not backend:
        yield GuardFailure(
            "backend", "", _short(entry.backend), _short(backend), "the backend given to torch.compile"
        )


def _value(source: str, scope: Mapping[str, Any]) -> Any:
    return eval(source, {"torch": torch, "__builtins__": __builtins__}, dict(scope))


def _numbers(text: str) -> list[int | None]:
    return [None if word == "None" else int(word) for word in text.split(", ") if word]


def _short(value: Any) -> str:
    """A value in a few words, without asking it for a long repr."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (types.FunctionType, types.CodeType)):
        code: Any = getattr(value, "__code__", value)
        return f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"
    try:
        text = repr(value)
    except Exception:
        text = object.__repr__(value)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}…"
