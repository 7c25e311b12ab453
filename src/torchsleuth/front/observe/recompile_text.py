"""Recompilations as a person reads them, in a terminal or as `CompileProfiler.report()`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torchsleuth.front.observe.plurals import counted
from torchsleuth.front.observe.recompiles import FunctionRecompiles, Recompilation, Recompiles, TriedCure

MOST_VALUES = 6
MOST_LISTED = 20


def recompile_lines(found: Recompiles, shorten: Callable[[str], str] = str) -> Iterator[str]:
    """The lines to show; `shorten` makes paths shorter."""
    if not found.functions:
        of = counted(found.compiled_functions, "function")
        yield f"no recompilations; {counted(found.compiles, 'compile')} of {of}"
        return
    limits = sum(function.limit is not None for function in found.functions)
    reached = f"; {limits} reached a limit" if limits else ""
    yield (
        f"{counted(found.count, 'recompilation')} of {len(found.functions)} of "
        f"{found.compiled_functions} compiled functions, {found.seconds:.2f} s{reached}"
    )
    for number, function in enumerate(found.functions, 1):
        yield ""
        yield from _function(number, function, shorten)
    if found.tried:
        yield ""
        yield "tried in a run of its own:"
        for tried in found.tried:
            yield f"   {'helps ' if tried.helped else 'no    '}  {tried.how}: {tried.why_not or _result(found, tried)}"


def _result(found: Recompiles, tried: TriedCure) -> str:
    return (
        f"its causes were met {tried.before} → {tried.after} times, recompilations {found.count} → "
        f"{tried.recompilations}, {found.seconds:.2f} → {tried.seconds:.2f} s"
    )


def _function(number: int, function: FunctionRecompiles, shorten: Callable[[str], str]) -> Iterator[str]:
    times = len(function.recompilations)
    seconds = sum(each.seconds for each in function.recompilations)
    yield (
        f"{number}. {function.function} ({shorten(function.place.file)}:{function.place.line}): compiled "
        f"{function.compiles} times, {times} of them again, {seconds:.2f} s"
    )
    for cause in function.causes:
        values = " → ".join(cause.values[:MOST_VALUES]) + (" …" if len(cause.values) > MOST_VALUES else "")
        again = f"  ({cause.times} times)" if cause.times > 1 else ""
        about = "" if cause.about == cause.cause else f"{cause.about}: "
        yield f"   {cause.cause}: {about}{values}{again}"
        yield f"      cure  {cause.cure.how}"
    if function.limit:
        yield (
            f"   limit: torch._dynamo.config.{function.limit} = {function.limit_value} reached; calls that fit no "
            "version now run without the compiler"
        )
    for each in function.recompilations[:MOST_LISTED]:
        yield f"   {_one(each)}"
    if times > MOST_LISTED:
        yield f"   … and {times - MOST_LISTED} more"


def _one(each: Recompilation) -> str:
    where = f", the rest after line {each.after_line}" if each.after_line is not None else ""
    guards = "; ".join(f"{g.about} is {g.actual}, not {g.expected}" for g in each.causes) or "no guard known"
    return f"{each.version}{where}: {each.seconds:.2f} s: {guards}"
