"""A failure in the user's process, put on disk: signature, traceback, and the input values that are still there.

The exception itself is left as it is; a mark on it keeps the outer seam from telling the same failure again.
"""

from __future__ import annotations

import contextlib
import linecache
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from torchsleuth.core.protocol.failures import (
    Failure,
    Overwritten,
    RecordedCall,
    UncaughtError,
)
from torchsleuth.script_runtime.hiding import hide_secrets
from torchsleuth.script_runtime.signature import Signature, fingerprint, signature_of_exception
from torchsleuth.watched.flight import Flight
from torchsleuth.watched.graph_record import RecordedGraph, keep_inputs
from torchsleuth.watched.startup import how_started, is_installed

if TYPE_CHECKING:
    from torchsleuth.watched.watch import Watch

MARK = "__torchsleuth_reported__"
AGAIN = "again"
_KINDS = {"compile": "compile", "run": "runtime"}
OUR_FOLDER = str(Path(__file__).resolve().parent.parent)


def describe(error: BaseException) -> str:
    """`Type: message` with the place it was raised at, for our own log."""
    last = traceback.extract_tb(error.__traceback__)[-1:] if error.__traceback__ else []
    place = f" ({Path(last[0].filename).name}:{last[0].lineno})" if last else ""
    return hide_secrets(f"{type(error).__name__}: {error}{place}")


def already_reported(error: BaseException) -> bool:
    """True where this exception, or one it was raised from, has become a failure on disk already."""
    return any(getattr(e, MARK, False) for e in chain_of(error))


def is_repeated(error: BaseException) -> bool:
    """True where such a failure of such a graph was met before in this process, and was only counted."""
    return any(getattr(e, MARK, None) == AGAIN for e in chain_of(error))


def forget(record: RecordedGraph, phase: str) -> None:
    """Removes the record of a graph that could not be compiled, where there is one like it already."""
    if phase == "compile":
        shutil.rmtree(record.folder, ignore_errors=True)


def chain_of(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    queue: list[BaseException | None] = [error]
    while queue:
        current = queue.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        queue += [getattr(current, "inner_exception", None), current.__cause__, current.__context__]


# ---- failures of graphs


def report_failure(
    watch: Watch,
    flight: Flight,
    record: RecordedGraph,
    error: BaseException,
    phase: str,
    inputs: Sequence[Any] = (),
) -> None:
    """A graph that fails to compile, or to run on `inputs`, becomes a failure on disk."""
    if (found := watch.overwritten_of(error)) is not None:
        report_overwritten(flight, error, found)
        return
    signature = signature_of_exception(error, f"{_KINDS[phase]}_error", phase)
    again = flight.seen_again((record.facts.hash, fingerprint(signature)))
    with contextlib.suppress(AttributeError):
        setattr(error, MARK, AGAIN if again else True)
    if again:
        forget(record, phase)
    else:
        failure = Failure(signature, traceback_text(error), time.time())
        _report_graph(watch, flight, record, failure, inputs)


def report_wrong_result(
    watch: Watch,
    flight: Flight,
    record: RecordedGraph,
    wrong: Sequence[str],
    detail: Mapping[str, Any],
    inputs: Sequence[Any],
) -> None:
    """A graph of which the results `wrong` differ from eager becomes a failure on disk."""
    signature = Signature("accuracy", "run", outputs=tuple(wrong))
    if not flight.seen_again((record.facts.hash, fingerprint(signature))):
        failure = Failure(signature, detail["sentence"], time.time(), accuracy=detail)
        _report_graph(watch, flight, record, failure, inputs)


def _report_graph(
    watch: Watch,
    flight: Flight,
    record: RecordedGraph,
    failure: Failure,
    inputs: Sequence[Any],
) -> None:
    with watch.our_own_work():
        keep_inputs(record, inputs)
    calls = tuple((each.facts.hash, each.calls) for each in watch.with_outer(record) if each.calls)
    kept = record.facts.inputs
    flight.report(replace(failure, record=str(record.folder), calls=calls, inputs=kept))


def report_call(flight: Flight, failure: Failure, place: tuple[str, int]) -> None:
    line = (*place, linecache.getline(*place).strip())
    flight.report(replace(failure, torch=torch.__version__, user_line=line, program=how_started()))


def report_overwritten(flight: Flight, error: BaseException, found: Overwritten) -> None:
    """A result of a CUDA graph was used after its memory was taken: by which call, and which one had made it."""
    signature = signature_of_exception(error, "runtime_error", "run")
    again = flight.seen_again((found.made.place, found.by.place, fingerprint(signature)))
    with contextlib.suppress(AttributeError):
        setattr(error, MARK, AGAIN if again else True)
    own = [each for each in traceback.extract_tb(error.__traceback__) if not is_installed(each.filename)]
    if own:
        used = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
        found = replace(found, used=used)
    made = found.made
    if not again:
        failure = Failure(
            signature,
            traceback_text(error),
            time.time(),
            function=made.function,
            frames=((made.file, made.line, made.function),),
            call=RecordedCall(why_none="it takes several calls, and a result that is kept between them"),
            overwritten=found,
        )
        report_call(flight, failure, (made.file, made.line))


# ---- tracebacks, in which nothing is ours


def traceback_text(error: BaseException) -> str:
    hide_our_frames(error)
    return hide_secrets("".join(traceback.format_exception(error)))


def hide_our_frames(error: BaseException) -> None:
    """Takes torchsleuth's own frames out of the tracebacks of `error` and what it was raised from."""
    for each in chain_of(error):
        each.__traceback__ = _without_our_frames(each.__traceback__)


def _without_our_frames(tb: TracebackType | None) -> TracebackType | None:
    while tb is not None and _is_ours(tb):
        tb = tb.tb_next
    current = tb
    while current is not None:
        following = current.tb_next
        while following is not None and _is_ours(following):
            following = following.tb_next
        current.tb_next = following
        current = following
    return tb


def _is_ours(tb: TracebackType) -> bool:
    return tb.tb_frame.f_code.co_filename.startswith(OUR_FOLDER)


def attend_uncaught_errors(
    flight: Callable[[], Flight | None], overwritten_of: Callable[[BaseException], Overwritten | None]
) -> None:
    """The traceback of an uncaught exception looks as it would without us; what it was is noted in the flight."""
    before = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
        hide_our_frames(error)
        recorder = flight()
        if recorder is not None and isinstance(error, Exception):
            found = None if already_reported(error) else overwritten_of(error)
            if found is not None:
                report_overwritten(recorder, error, found)
            recorder.ended_with(_uncaught(error))
        before(kind, error, error.__traceback__)

    sys.excepthook = excepthook


def _uncaught(error: Exception) -> UncaughtError:
    own = [each for each in traceback.extract_tb(error.__traceback__) if not is_installed(each.filename)]
    line = own[-1] if own else None
    try:
        message = hide_secrets(str(error))[:500]
    except Exception:  # a user's __str__ may do anything
        message = ""
    return UncaughtError(
        type(error).__name__,
        message,
        place=f"{Path(line.filename).name}:{line.lineno}" if line else None,
        code=line.line if line else None,
        of_surroundings=isinstance(error, (OSError, MemoryError, ImportError)),
    )
