"""Compares whole calls of compiled functions with eager: what capture itself changes shows in no graph.

Here is which calls of the user's process are compared, and what becomes of a verdict. For each call that is due, a fork
of this process makes the call twice more (`call_judge`); the user's process only waits for what comes of it, and
nothing of what the two do can be seen in it or outside.
"""

from __future__ import annotations

import json
import linecache
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from torchsleuth.core.protocol.codec import from_json
from torchsleuth.core.protocol.failures import CALLS_NOT_COMPARED, Remark
from torchsleuth.torch_internals.compiled_calls import CompiledCall, caller_of_compiled
from torchsleuth.torch_internals.modes import tracing_under_way
from torchsleuth.watched import apply_change, call_failures
from torchsleuth.watched.call_difference import COMPILED, CallVerdict
from torchsleuth.watched.call_judge import (
    Between,
    content_of,
    ended_by,
    fork_judge,
    how_it_ended,
    why_not_forked,
)
from torchsleuth.watched.call_state import user_function
from torchsleuth.watched.flight import Flight
from torchsleuth.watched.shadow import MergedOutputs, component_of

if TYPE_CHECKING:
    from torchsleuth.watched.watch import Watch

# Of each compiled function; a call after one that compiled something is looked at as well, up to the second number.
FIRST_CALLS, MOST_CALLS = 3, 8
# What a judge may still need once the call has ended.
LAST_SECONDS = 5.0

_NOT_COMPARED = "whole calls are not compared with eager"


@dataclass
class _Function:
    calls: int = 0
    checked: int = 0
    compiled_last_time: bool = False


@dataclass
class WholeCalls:
    """Which calls of this process were compared.

    `merged` are graphs of the call under way whose compiler gave one tensor for several.
    """

    functions: dict[tuple[Any, int], _Function] = field(default_factory=dict)
    logged: set[str] = field(default_factory=set)
    merged: list[MergedOutputs] = field(default_factory=list)

    def due(self, key: tuple[Any, int]) -> _Function | None:
        """Counts a call; what is known of its function where the call is to be compared."""
        known = self.functions.setdefault(key, _Function())
        known.calls += 1
        wanted = known.calls <= FIRST_CALLS or known.compiled_last_time
        return known if wanted and known.checked < MOST_CALLS else None


def begin(watch: Watch, flight: Flight, call: CompiledCall) -> Callable[[tuple[Any, ...]], None] | None:
    """Starts the comparison of a call that is about to be made; the function it returns waits for what came of it.

    That is given what the call returned, in a tuple, which is empty where it raised.
    """
    function = user_function(call.function)
    if function is None or watch.settings.only not in (None, function.__name__):
        return None
    state = watch.whole_calls
    known = state.due((function.__code__, id(call.function)))
    if known is None:
        return None
    graphs, failed = flight.graphs, flight.failed
    why_not = _why_not()
    seconds = watch.budget.seconds_for(first=known.checked == 0)
    if why_not is None and not seconds:
        why_not = "the time for it is spent (--check-budget)"
    if why_not is not None:
        if f"{_NOT_COMPARED}: {why_not}" not in state.logged and not tracing_under_way():
            flight.remark(
                Remark(0, "call", function.__name__, CALLS_NOT_COMPARED, f"{_NOT_COMPARED}: {why_not}")
            )
        _log_once(state, flight, f"{_NOT_COMPARED}: {why_not}")
        apply_change.end_if_not_compared(why_not)
        return None
    known.checked += 1
    started = time.monotonic()
    state.merged.clear()
    caller, between = caller_of_compiled(), Between()
    place = call_failures.call_place(caller) if caller is not None else None
    called_at = (place.file, *place.span) if place is not None and place.span is not None else None
    judge = fork_judge(watch, call, between)

    def end(returned: tuple[Any, ...]) -> None:
        known.compiled_last_time = flight.graphs != graphs
        if state.merged and returned and flight.failed == failed:
            between.call_left(watch, call, returned[0])
            deadline = time.monotonic() + seconds
        else:
            between.call_ended()
            deadline = max(started + seconds, time.monotonic() + LAST_SECONDS)
        with watch.budget.spending():
            verdict = _verdict(judge, between, deadline)
        _conclude(watch, flight, function, known, verdict, failed, called_at)

    return end


def _why_not() -> str | None:
    """Why no call of this process, or none at this moment, can be repeated in a fork."""
    return "torch is tracing the call" if tracing_under_way() else why_not_forked()


def _log_once(state: WholeCalls, flight: Flight, sentence: str) -> None:
    if sentence not in state.logged:
        state.logged.add(sentence)
        flight.log(sentence)


def _verdict(judge: int, between: Between, deadline: float) -> CallVerdict:
    try:
        status = ended_by(judge, deadline)
        text = content_of(between.answer)
    except ChildProcessError:
        return CallVerdict("the program took the end of the comparing process for one of its own")
    finally:
        between.close()
    if status is None:
        return CallVerdict("the comparison took too long")
    return from_json(CallVerdict, json.loads(text)) if text else CallVerdict(how_it_ended(status))


def _conclude(
    watch: Watch,
    flight: Flight,
    function: FunctionType,
    known: _Function,
    verdict: CallVerdict,
    failed_before: int,
    called_at: tuple[str, int, int, int, int] | None,
) -> None:
    code = function.__code__
    if verdict.why_not is not None:
        why_not = f"calls of {code.co_name} not compared with eager: {verdict.why_not}"
        _log_once(watch.whole_calls, flight, why_not)
        if flight.failed == failed_before:
            apply_change.end_if_not_compared(verdict.why_not)
        return
    # A call that fails has its case from whoever failed.
    if not verdict.paths or (verdict.raises and flight.failed != failed_before):
        return
    known.checked = MOST_CALLS  # once is enough
    component, line = "dynamo", None
    if verdict.how == COMPILED:
        component, line = component_of(watch.whole_calls.merged, code.co_filename)
    place = (code.co_filename, code.co_name, line or _line_of_definition(code))
    call_failures.report_wrong_call(flight, place, component, verdict, called_at)


def _line_of_definition(code: CodeType) -> int:
    """The line with `def` in it: a function's first one may be that of a decorator."""
    first = code.co_firstlineno
    own = [at for _, _, at in code.co_lines() if at is not None and at >= first]
    lines = range(first, max(own, default=first) + 1)
    defines = re.compile(r"\s*(async\s+)?def\s")
    return next((n for n in lines if defines.match(linecache.getline(code.co_filename, n))), first)
