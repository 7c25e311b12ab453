"""Compares whole calls of compiled functions with eager: what capture itself changes shows in no graph.

Here is which calls of the user's process are compared, and what becomes of a verdict. For each call that is due, a fork
of this process makes the call twice more (`call_judge`); the user's process only waits for what comes of it, and
nothing of what the two do can be seen in it or outside.

A process that cannot be forked is left in peace. The program runs again once it has ended, in processes that can change
nothing outside: in eager, as captured, and both once more where they differ. What each call saw and left lies in
the folders of these runs. Comparable is a call that saw the same to the last bit; a difference counts that both runs as
captured show and no two runs in eager do.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import linecache
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch

from torchsleuth.core.processes.sealed import fill_fresh_memory
from torchsleuth.core.protocol.codec import from_json
from torchsleuth.core.protocol.failures import (
    CALLS_NOT_COMPARED,
    ComparedCall,
    LeftOut,
    RecordedCall,
    Remark,
)
from torchsleuth.core.protocol.files import write_whole
from torchsleuth.core.watching import AT_END, Again
from torchsleuth.torch_core.compare.reference.memory import EXTRA, program_bytes
from torchsleuth.torch_core.compare.reference.rng import save_rng
from torchsleuth.torch_internals.compiled_calls import CompiledCall, caller_of_compiled, is_dynamos_own
from torchsleuth.torch_internals.modes import outside_all_modes, tracing_under_way
from torchsleuth.watched import apply_change, call_failures
from torchsleuth.watched.call_failures import (
    CAPTURED,
    COMPILED,
    ELSEWHERE,
    CallVerdict,
    Difference,
    differences,
    verdict_on,
)
from torchsleuth.watched.call_judge import (
    REMARK,
    WITH_RANKS,
    Between,
    content_of,
    ended_by,
    fork_judge,
    how_it_ended,
    most_telling,
    noting_questions,
    source_of,
    why_not_forked,
)
from torchsleuth.watched.call_state import (
    CALL,
    MOST_BYTES,
    RANDOM_NUMBERS,
    Leaf,
    Leaves,
    Root,
    is_below,
    leaves_of,
    numbers_of,
    numbers_to_come,
    packed,
    roots_of,
    unpacked,
    user_function,
    versions_below,
    walked,
)
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
    leaves_out: bool = False
    made: Counter[CodeType] = field(
        default_factory=Counter
    )  # calls, by code: an object's number may be another's
    bytes_left: int = MOST_BYTES

    @property
    def first_calls(self) -> int:
        return sum(min(calls, FIRST_CALLS) for calls in self.made.values())

    def due(self, key: tuple[Any, int]) -> _Function | None:
        """Counts a call; what is known of its function where the call is to be compared."""
        known = self.functions.setdefault(key, _Function())
        known.calls += 1
        self.made[key[0]] += 1
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
        if why_not == why_not_forked() and why_not != WITH_RANKS and not state.leaves_out:
            state.leaves_out = True
            atexit.register(_say_what_is_left, watch, flight)
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
    between, called_at = Between(), _called_at()
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


def _called_at() -> tuple[str, int, int, int, int] | None:
    """The text of the call in the program: the file, first and last line, first and last column."""
    caller = caller_of_compiled()
    place = call_failures.call_place(caller) if caller is not None else None
    return (place.file, *place.span) if place is not None and place.span is not None else None


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


# ---- further runs of the program, where a process cannot be forked


def _say_what_is_left(watch: Watch, flight: Flight) -> None:
    if flight.pid == os.getpid() and not flight.failed:
        used = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
        memory = program_bytes([torch.empty(0, device=f"cuda:{number}") for number in range(used)])
        flight.left_out(
            LeftOut(watch.whole_calls.first_calls, watch.budget.left_at_end, tuple(memory.items()))
        )


def begin_again(watch: Watch, flight: Flight, call: CompiledCall) -> Callable[[tuple[Any, ...]], None] | None:
    """Writes down what a call sees and, at its end, what it leaves; where it is made as captured that is compared."""
    function, state, again = user_function(call.function), watch.whole_calls, watch.settings.again
    if function is None or again is None or watch.settings.only not in (None, function.__name__):
        return None
    folders, code = [Path(folder) for folder in again.folders], function.__code__
    if not state.made:
        _begin_run(again)
    state.made[code] += 1
    if state.made[code] > FIRST_CALLS or tracing_under_way():
        return None
    key = f"{code.co_filename}:{code.co_firstlineno} {code.co_qualname}"
    name = f"{hashlib.sha256(key.encode()).hexdigest()[:24]}-{state.made[code]}"
    suspected = [each.path for each in _seen(folders, name)[0]] if len(folders) > 2 else []
    called_at, remarks, questions = _called_at(), list[str](), ExitStack()
    with outside_all_modes(), torch.no_grad():
        roots = roots_of(call.function, call.args, call.kwargs)
        saw, rng, before = state_before(roots), save_rng(), versions_below(roots)
    asked = suspected and not again.in_eager
    source = source_of(watch, call, CAPTURED, most_telling(suspected)) if asked else RecordedCall()
    if suspected and again.in_eager:
        questions.enter_context(noting_questions(remarks))

    def end(returned: tuple[Any, ...]) -> None:
        questions.close()
        error = sys.exception()
        if error is not None and is_dynamos_own(error):
            return
        if rng.numpy is not None and repr(save_rng().numpy) != repr(rng.numpy):
            remarks.append("it draws numpy's random numbers, in place of which torch.compile draws torch's")
        how = Leaf("returns") if returned else Leaf(f"raises {type(error).__name__}", str(error)[:200])
        roots = roots_of(call.function, call.args, call.kwargs)
        roots += [("result", returned[0])] if returned else []
        content = packed(
            {
                SAW: Leaf("state", saw),
                **({REMARK: Leaf("remark", remarks[0])} if remarks else {}),
                CALL: how,
                **leaves_of(roots, before, state.bytes_left),
                RANDOM_NUMBERS: Leaf("Tensor", "", numbers_to_come()),
            }
        )
        state.bytes_left = max(0, state.bytes_left - len(content))
        write_whole(folders[-1] / name, content)
        if len(folders) == 2:
            found, why_not = _seen(folders, name)
            flight.compared(ComparedCall(code.co_qualname, bool(found), why_not))
        elif len(folders) == 4 and (kept := confirmed(folders, name)):
            place = (code.co_filename, code.co_name, _line_of_definition(code))
            verdict = verdict_on(kept, CAPTURED, source)
            call_failures.report_wrong_call(flight, place, "dynamo", verdict, called_at)
        if state.first_calls == again.calls:
            os._exit(0)

    return end


def _begin_run(again: Again) -> None:
    """What nobody wrote to holds other bytes in the second pair of runs; both of a pair take no more of a device than
    twice what the program took, and a gibibyte."""
    other = len(again.folders) > 2
    fill_fresh_memory(0xAA if other else 0x55)
    if torch.cuda.is_initialized():
        for name, size in again.memory:
            if name.startswith("cuda"):
                whole = torch.cuda.get_device_properties(name).total_memory
                torch.cuda.set_per_process_memory_fraction(min(1.0, (size + EXTRA // 2) / whole), name)
                # Small blocks and large ones are kept apart.
                sizes = [1 << 18] * 64 + [64 << 20] if other else []
                del [torch.full((size,), 0xAA, dtype=torch.uint8, device=name) for size in sizes][:]


def state_before(roots: Iterable[Root]) -> str:
    """Everything that a call can see, as one short text that is another one where a bit of it is.

    >>> one, other = torch.zeros(3, dtype=torch.uint8), torch.tensor([0, 0, 1], dtype=torch.uint8)
    >>> [state_before([("x", one)]) == state_before([("x", each)]) for each in (one, other)]
    [True, False]
    """
    walk = walked(roots)
    known = {path: (leaf.kind, leaf.text) for path, leaf in walk.leaves.items()}
    bits = {path: _digest(tensor) for path, tensor in walk.tensors.items() if numbers_of(tensor) is not None}
    rng = save_rng()
    drawn = [rng.python, rng.numpy, numbers_to_come().tolist(), *map(_digest, rng.cuda)]
    told = repr((known, bits, drawn))
    return hashlib.sha256(told.encode()).hexdigest()


def _digest(tensor: torch.Tensor) -> tuple[int, ...]:
    """Sums of its bytes that another order or one other bit would change, made where it lies."""
    values = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    octets = values.view(torch.uint8)
    words = (
        octets[: octets.numel() // 8 * 8].view(torch.int64) if octets.storage_offset() % 8 == 0 else octets
    )
    sums = [int(octets[octets.numel() // 8 * 8 :].sum())]
    for piece in words.split(1 << 24):
        places = torch.arange(piece.numel(), device=piece.device) * 2 + 1
        sums += [int(piece.sum()), int((piece * places).sum())]
    return tuple(sums)


SAW = "what it sees"
POLL_SECONDS = 0.02


def _read(folder: Path, name: str) -> Leaves | None:
    """What a call left in a run, which may be under way; None where it ends without that call."""
    while not (folder / name).is_file():
        if (folder / AT_END).exists():
            return None
        time.sleep(POLL_SECONDS)
    return unpacked((folder / name).read_bytes())


def _seen(folders: list[Path], name: str) -> tuple[list[Difference], str | None]:
    """How the first run as captured differs from the first in eager, or why that cannot be told."""
    eager, captured = _read(folders[0], name), _read(folders[1], name)
    if eager is None or captured is None:
        return [], "it is not made when nothing is compiled"
    if eager.pop(SAW) != captured.pop(SAW):
        return [], "what it sees differs from run to run"
    return differences(eager, captured, ELSEWHERE), None


def confirmed(folders: list[Path], name: str) -> list[Difference]:
    """The differences that both runs as captured show, and neither the two in eager nor those two among themselves."""
    runs = [_read(folder, name) for folder in folders]
    eager, captured, eager_again, captured_again = runs
    if eager is None or captured is None or eager_again is None or captured_again is None:
        return []
    if len({run.pop(SAW) for run in runs if run is not None}) > 1 or REMARK in eager_again:
        return []
    again = [each.path for each in differences(eager, captured_again, ELSEWHERE)]
    chance = differences(eager, eager_again) + differences(captured, captured_again)
    return [
        each
        for each in differences(eager, captured, ELSEWHERE)
        if each.path in again
        and not any(is_below(each.path, c.path) or is_below(c.path, each.path) for c in chance)
    ]
