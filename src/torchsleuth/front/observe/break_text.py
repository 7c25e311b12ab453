"""Graph breaks as a person reads them, in a terminal or as `str(explain(fn)(x))`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torchsleuth.front.observe.breaks import Breaks, GraphBreak
from torchsleuth.front.observe.plurals import counted

# A stack of a deep model is long; the calls next to the break are the ones to look at.
MOST_STACK = 6


def break_lines(found: Breaks, shorten: Callable[[str], str] = str) -> Iterator[str]:
    """The lines to show; `shorten` makes paths shorter."""
    yield _headline(found)
    for number, each in enumerate(found.breaks, 1):
        yield ""
        yield from _one(number, each, shorten)


def _headline(found: Breaks) -> str:
    again = f" (with {counted(found.recompilations, 'recompilation')})" if found.recompilations else ""
    return (
        f"{counted(found.graph_break_count, 'graph break')}; {counted(found.graph_count, 'graph')} with "
        f"{counted(found.op_count, 'operation')} captured in {counted(found.functions, 'function')}{again}"
    )


def _one(number: int, each: GraphBreak, shorten: Callable[[str], str]) -> Iterator[str]:
    gb = f"  [{each.number}]" if each.number else ""
    yield f"{number}. {shorten(each.place.file)}:{each.place.line} in {each.place.function}{gb}"
    if each.place.code:
        yield f"       {each.place.code}"
    yield f"   why     {each.reason.why}"
    if each.reason.because:
        yield f"           and {each.reason.because}"
    if each.reason.fix:
        yield f"   fix     {each.reason.fix}"
    yield f"   gain    {each.gain}"
    others = [name for name in each.functions if name.rpartition(".")[2] != each.place.function]
    if others:
        yield f"   cuts    {', '.join(each.functions)}"
    if each.compiles > 1:
        yield f"   met     in {each.compiles} compiles"
    calls = each.stack[:-1][-MOST_STACK:]
    for position, place in enumerate(calls):
        head = "called  " if position == 0 else "        "
        yield f"   {head}{shorten(place.file)}:{place.line} in {place.function}: {place.code}"
