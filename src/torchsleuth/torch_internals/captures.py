"""Dynamo's capture from inside: each function it goes through, each instruction, each graph that it hands on and why;
and later, why what was captured is not used again.

Dynamo runs a function's bytecode on symbolic values. A function that is called is inlined: an interpreter of the same
kind, with the caller as its parent. Where it cannot go on it starts the frame again, and this time ends the graph in
time. What it found is guarded. Where a guard fails, torch's own report stops at the first; here each is read as torch
writes it and looked at by itself, with what it expects and what it found. One that cannot be read that way is left to
torch's report, which is kept as well.

Versions: the interpreter's `run` and `step`, `OutputGraph.compile_subgraph`, `CheckFunctionManager` and `SideEffects`
are there in 2.11 to 2.15; what a version lacks is not reported. Guards as text (`code_parts`) and `check_verbose` are
there in 2.11 to 2.13; the forms read here are 2.13's.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import itertools
import json
import re
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchsleuth.torch_internals.places import all_of, replaced

# What happened, and what is known about it.
Report = Callable[..., None]
# Texts that may be the user's: as much of them as a person reads.
MOST_TEXT = 2000
MOST_GUARDS = 2000
MOST_ARGUMENT = 80

_numbers = itertools.count(1)
_open: list[_Open] = []


@dataclass(eq=False)
class _Open:
    """A function that is being gone through."""

    number: int
    instructions: int = 0


def hook_traced_functions(report: Report, instructions: bool = False) -> Callable[[], None]:
    """Reports each function that is gone through (`trace_enter`, `trace_leave`), and on request of each instruction.

    `trace_enter` has number, parent, function, file, line, called_from, graph, attempt; `trace_leave` has number,
    seconds, instructions and how it ended.
    """

    def traced(run: Any) -> Any:
        def traced_run(self: Any) -> Any:
            opened = _Open(next(_numbers))
            with contextlib.suppress(Exception):
                _enter(self, opened, report)
            _open.append(opened)
            started, how = time.perf_counter(), "returned"
            try:
                return run(self)
            except BaseException as error:
                how = _how(error)
                raise
            finally:
                if opened in _open:
                    del _open[_open.index(opened) :]
                report(
                    "trace_leave",
                    number=opened.number,
                    seconds=round(time.perf_counter() - started, 6),
                    instructions=opened.instructions,
                    how=how,
                )

        return traced_run

    def counted(step: Any) -> Any:
        def counted_step(self: Any) -> Any:
            if _open:
                opened = _open[-1]
                opened.instructions += 1
                if instructions:
                    with contextlib.suppress(Exception):
                        _instruction(self, opened, report)
            return step(self)

        return counted_step

    undo_run = replaced("torch._dynamo.symbolic_convert", "InstructionTranslatorBase", "run", traced)
    undo_step = replaced("torch._dynamo.symbolic_convert", "InstructionTranslatorBase", "step", counted)
    return all_of([undo_run, undo_step])


def _enter(translator: Any, opened: _Open, report: Report) -> None:
    code, parent = translator.f_code, getattr(translator, "parent", None)
    report(
        "trace_enter",
        number=opened.number,
        parent=_open[-1].number if _open and parent is not None else None,
        function=code.co_qualname,
        file=code.co_filename,
        line=code.co_firstlineno,
        called_from=getattr(parent, "lineno", None) if parent is not None else None,
        **_compile_under_way(),
    )


def _instruction(translator: Any, opened: _Open, report: Report) -> None:
    at = translator.instruction_pointer
    if at is None:
        return
    instruction = translator.instructions[at]
    positions = getattr(instruction, "positions", None)
    argument = instruction.argval
    report(
        "trace_instruction",
        number=opened.number,
        op=instruction.opname,
        # A target of a jump prints as the instruction there, and a constant may be long.
        argument=None if argument is None or hasattr(argument, "opname") else repr(argument)[:MOST_ARGUMENT],
        line=getattr(positions, "lineno", None) or translator.lineno,
    )


def hook_subgraphs(report: Report) -> Callable[[], None]:
    """Reports each graph that is handed on (`trace_subgraph`): why, where, how many calls it holds, seconds."""

    def timed(original: Any) -> Any:
        def compile_subgraph(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            facts: dict[str, Any] = {}
            with contextlib.suppress(Exception):
                given = (*args, *kwargs.values())
                facts = _subgraph(self, tx, next(each for each in given if hasattr(each, "user_stack")))
            started = time.perf_counter()
            try:
                return original(self, tx, *args, **kwargs)
            finally:
                seconds = round(time.perf_counter() - started, 6)
                report("trace_subgraph", number=_open[-1].number if _open else None, seconds=seconds, **facts)

        return compile_subgraph

    return replaced("torch._dynamo.output_graph", "OutputGraph", "compile_subgraph", timed)


def _subgraph(output: Any, translator: Any, reason: Any) -> dict[str, Any]:
    calls = sum(node.op.startswith("call") for node in output.graph.nodes)
    stack = list(getattr(reason, "user_stack", None) or ())
    return {
        "why": str(getattr(reason, "reason", reason))[:MOST_TEXT],
        "graph_break": bool(getattr(reason, "graph_break", False)),
        "calls": calls,
        "line": stack[-1].lineno if stack else translator.lineno,
        "file": stack[-1].filename if stack else translator.f_code.co_filename,
        **_compile_under_way(),
    }


def hook_guards(report: Report) -> Callable[[], None]:
    """Reports the guards of each compiled frame (`trace_guards`): kind, name, conditions and the user's line."""

    def listed(original: Any) -> Any:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            with contextlib.suppress(Exception):
                given = (*args, *kwargs.values())
                guards = list(next(each.guards for each in given if hasattr(each, "guards")))
                kept = [_guard(guard) for guard in sorted(guards)[:MOST_GUARDS]]
                report("trace_guards", **_compile_under_way(), count=len(guards), guards=kept)

        return init

    return replaced("torch._dynamo.guards", "CheckFunctionManager", "__init__", listed)


def _guard(guard: Any) -> dict[str, Any]:
    stack = list(guard.user_stack or ())
    return {
        "kind": guard.create_fn_name(),
        "name": str(guard.name)[:MOST_ARGUMENT],
        "conditions": [str(code)[:MOST_TEXT] for code in guard.code_list or ()][:8],
        "line": f"{stack[-1].filename}:{stack[-1].lineno}" if stack else None,
    }


def hook_side_effects(report: Report) -> Callable[[], None]:
    """Reports what compiled code does beside its result (`trace_side_effects`): which objects it changes, and where."""

    def listed(original: Any) -> Any:
        def codegen_update_mutated(self: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):
                # What the function made itself is nobody's to see.
                modified = self._get_modified_vars()
                changed = [each for each in modified if getattr(each, "source", None) is not None]
                effects = [_effect(self, each) for each in changed]
                if effects:
                    number = _open[-1].number if _open else None
                    report("trace_side_effects", number=number, **_compile_under_way(), effects=effects)
            return original(self, *args, **kwargs)

        return codegen_update_mutated

    return replaced("torch._dynamo.side_effects", "SideEffects", "codegen_update_mutated", listed)


def _effect(effects: Any, changed: Any) -> dict[str, Any]:
    source: Any = getattr(changed, "source", None)
    name = getattr(changed, "local_name", None)
    with contextlib.suppress(Exception):
        found = source.name
        name = name or (found() if callable(found) else found)
    stacks = getattr(effects, "mutation_user_stacks", {}).get(changed, ())
    lines = [f"{stack[-1].filename}:{stack[-1].lineno}" for stack in stacks if stack]
    kind = type(changed).__name__.removesuffix("Variable")
    with contextlib.suppress(Exception):
        found = changed.python_type_name()
        kind = kind if found.startswith("<") else found
    return {"object": str(name or "made in the function")[:MOST_ARGUMENT], "kind": kind, "lines": lines[:8]}


def _how(error: BaseException) -> str:
    """How a function was left: what starts the frame again is no failure."""
    names = [each.__name__ for each in type(error).__mro__]
    if "RestartAnalysis" in names:
        return "started again"
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}"[:MOST_TEXT]


def _compile_under_way() -> dict[str, Any]:
    from torch._guards import CompileContext

    found = CompileContext.current_trace_id()
    known = (str(found.compile_id), found.attempt) if found is not None else (None, None)
    return dict(zip(("graph", "attempt"), known))


MOST_ENTRIES = 16
MOST_FAILURES = 60
MOST_VALUE = 200

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
            str(getattr(entry, "compile_id", "?")), tuple(_failures(entry, frame, backend))[:MOST_FAILURES]
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
    size = _sizes(expected["size"])
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
        for index, (want, have) in enumerate(zip(_sizes(expected["stride"]), value.stride())):
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
            yield GuardFailure("other", "", "true", "false", text[: 2 * MOST_VALUE])
    if report.result and getattr(entry, "backend", backend) is not backend:
        yield GuardFailure(
            "backend", "", _short(entry.backend), _short(backend), "the backend given to torch.compile"
        )


def _value(source: str, scope: Mapping[str, Any]) -> Any:
    return eval(source, {"torch": torch, "__builtins__": __builtins__}, dict(scope))


def _sizes(text: str) -> list[int | None]:
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
    return text if len(text) <= MOST_VALUE else f"{text[:MOST_VALUE]}…"
