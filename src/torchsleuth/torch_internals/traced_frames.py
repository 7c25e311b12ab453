"""Dynamo's capture from inside: each function it goes through, each instruction, each graph that it hands on and why.

Dynamo runs a function's bytecode on symbolic values. A function that is called is inlined: an interpreter of the same
kind, with the caller as its parent. Where it cannot go on it starts the frame again, and this time ends the graph in
time.

Versions: the interpreter's `run` and `step`, `OutputGraph.compile_subgraph`, `CheckFunctionManager` and `SideEffects`
are there in 2.11 to 2.15; what a version lacks is not reported.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from typing import Any

from torchsleuth.torch_internals.places import all_of, replaced

# What happened, and what is known about it.
Report = Callable[..., None]
# Texts that may be the user's: as much of them as a person reads.
MOST_TEXT = 2000
MOST_GUARDS = 2000
MOST_ARGUMENT = 80

_numbers = itertools.count(1)
_open: list[_Open] = []


class _Open:
    """A function that is being gone through."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.instructions = 0


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
    graph, attempt = _compile_and_attempt()
    report(
        "trace_enter",
        number=opened.number,
        parent=_open[-1].number if _open and parent is not None else None,
        function=code.co_qualname,
        file=code.co_filename,
        line=code.co_firstlineno,
        called_from=getattr(parent, "lineno", None) if parent is not None else None,
        graph=graph,
        attempt=attempt,
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
    graph, attempt = _compile_and_attempt()
    return {
        "why": str(getattr(reason, "reason", reason))[:MOST_TEXT],
        "graph_break": bool(getattr(reason, "graph_break", False)),
        "calls": calls,
        "line": stack[-1].lineno if stack else translator.lineno,
        "file": stack[-1].filename if stack else translator.f_code.co_filename,
        "graph": graph,
        "attempt": attempt,
    }


def hook_guards(report: Report) -> Callable[[], None]:
    """Reports the guards of each compiled frame (`trace_guards`): kind, name, conditions and the user's line."""

    def listed(original: Any) -> Any:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            with contextlib.suppress(Exception):
                graph, attempt = _compile_and_attempt()
                given = (*args, *kwargs.values())
                guards = list(next(each.guards for each in given if hasattr(each, "guards")))
                kept = [_guard(guard) for guard in sorted(guards)[:MOST_GUARDS]]
                report("trace_guards", graph=graph, attempt=attempt, count=len(guards), guards=kept)

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
                    graph, attempt = _compile_and_attempt()
                    number = _open[-1].number if _open else None
                    report("trace_side_effects", number=number, graph=graph, attempt=attempt, effects=effects)
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


def _compile_and_attempt() -> tuple[str | None, int | None]:
    from torch._guards import CompileContext

    found = CompileContext.current_trace_id()
    return (str(found.compile_id), found.attempt) if found is not None else (None, None)
