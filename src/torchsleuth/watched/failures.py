"""A failure in the user's process, put on disk: signature, traceback, and the input values that are still there.

The exception itself is left as it is; a mark on it keeps the outer seam from telling the same failure again.
"""

from __future__ import annotations

import contextlib
import gc
import linecache
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import torch

from torchsleuth.core.cases.record import AmbientState
from torchsleuth.core.protocol.failures import (
    CallPlace,
    Failure,
    GivenUp,
    Overwritten,
    RecordedCall,
    UncaughtError,
    WrongCall,
)
from torchsleuth.script_runtime.hiding import hide_secrets
from torchsleuth.script_runtime.signature import Signature, fingerprint, signature_of_exception
from torchsleuth.torch_core.graphs.provenance import calling_line
from torchsleuth.torch_internals import hooks as seams
from torchsleuth.torch_internals.compiled_calls import CallUnderWay, call_under_way, caller_of_compiled
from torchsleuth.torch_internals.frames import original_function
from torchsleuth.torch_internals.modes import thread_state
from torchsleuth.watched.call_difference import CallVerdict
from torchsleuth.watched.call_source import Around, call_sources
from torchsleuth.watched.flight import Flight
from torchsleuth.watched.graph_record import RecordedGraph, keep_inputs
from torchsleuth.watched.startup import how_started, is_installed

if TYPE_CHECKING:
    from torchsleuth.watched.watch import Watch

_MARK = "__torchsleuth_reported__"
# In the names of what Dynamo raises where a function was compiled too often.
_LIMIT = "LimitHit"
AGAIN = "again"
# Some 50 MB of small objects; a capture that makes more of them is collected as ever.
MOST_OBJECTS = 200_000
MOST_REASON = 200
# What torch says where the traced code raises, which alone says nothing.
_RAISED = "Observed exception"
_CONTEXT = "Developer debug context:"
_KINDS = {"compile": "compile", "run": "runtime"}
_OUR_FOLDER = str(Path(__file__).resolve().parent.parent)


def describe(error: BaseException) -> str:
    """`Type: message` with the place it was raised at, for our own log."""
    last = traceback.extract_tb(error.__traceback__)[-1:] if error.__traceback__ else []
    place = f" ({Path(last[0].filename).name}:{last[0].lineno})" if last else ""
    return hide_secrets(f"{type(error).__name__}: {error}{place}")


def already_reported(error: BaseException) -> bool:
    """True where this exception, or one it was raised from, has become a failure on disk already."""
    return any(getattr(e, _MARK, False) for e in _chain(error))


def is_repeated(error: BaseException) -> bool:
    """True where such a failure of such a graph was met before in this process, and was only counted."""
    return any(getattr(e, _MARK, None) == AGAIN for e in _chain(error))


def forget(record: RecordedGraph, phase: str) -> None:
    """Removes the record of a graph that could not be compiled, where there is one like it already."""
    if phase == "compile":
        shutil.rmtree(record.folder, ignore_errors=True)


def _chain(error: BaseException) -> Iterator[BaseException]:
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
        setattr(error, _MARK, AGAIN if again else True)
    if again:
        forget(record, phase)
    else:
        failure = Failure(signature, _traceback_text(error), time.time())
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


# ---- failures of calls, where no graph fails


def report_capture_error(
    watch: Watch, flight: Flight, frame: seams.FrameCapture, error: BaseException, state: AmbientState
) -> None:
    """Dynamo failed before there was a graph: the call is kept instead, and a bug of the program told apart.

    `state` is that of the program when the frame was looked at: its modes.
    """
    signature = signature_of_exception(error, "capture_error", "capture")
    with contextlib.suppress(AttributeError):
        setattr(error, _MARK, True)
    if flight.seen_again((str(frame.function), fingerprint(signature))):
        return
    stack = getattr(error, "real_stack", None) or []
    # The line a person can change: theirs, where the failure is in a library that they call. Where they compiled
    # what a library made, as torch.vmap(f), it is the line that calls it.
    own = [frame for frame in stack if not is_installed(frame.filename)]
    caller = None if own else calling_line()
    user = own[-1] if own else stack[-1] if stack else None
    place = (user.filename, user.lineno or 0) if user else (frame.file, frame.line)
    if caller is not None and is_installed(place[0]):
        place = (caller.file, caller.line)
    op = seams.failed_call(error)
    call = RecordedCall()
    with watch.our_own_work():
        call = recorded_call(watch, call_under_way(), state, error)
    _report_call(
        flight,
        Failure(
            signature,
            _traceback_text(error),
            time.time(),
            function=frame.function,
            frames=tuple((each.filename, each.lineno, each.name) for each in _without_transforms(stack)),
            call=call,
            op=None if op is None else seams.target_name(op[0]),
            fails_in_eager=None if op is None else seams.fails_in_eager(*op),
        ),
        place,
    )


def report_wrong_call(
    flight: Flight,
    place: tuple[str, str, int],
    component: str,
    verdict: CallVerdict,
    called_at: tuple[str, int, int, int, int] | None = None,
) -> None:
    """A call that differs from its eager one by the fault of `component`, though each of its graphs does not."""
    file, function, line = place
    phase = "capture" if component == "dynamo" else "run"
    signature = Signature("accuracy", phase, outputs=tuple(verdict.paths))
    if flight.seen_again((file, function, fingerprint(signature))):
        return
    _report_call(
        flight,
        Failure(
            signature,
            "\n".join(verdict.sentences),
            time.time(),
            function=function,
            frames=((file, line, function),),
            call=verdict.call,
            capture=WrongCall(tuple(verdict.sentences), place, component, called_at),
        ),
        (file, line),
    )


def _report_call(flight: Flight, failure: Failure, place: tuple[str, int]) -> None:
    line = (*place, linecache.getline(*place).strip())
    flight.report(replace(failure, torch=torch.__version__, user_line=line, program=how_started()))


def recorded_call(
    watch: Watch,
    call: CallUnderWay | None,
    state: AmbientState,
    error: BaseException | None = None,
    wrong: Sequence[str] = (),
) -> RecordedCall:
    """The call of a compiled function that is under way, as program text; or why it cannot be written."""
    if call is None:
        return RecordedCall(why_none="no call of a compiled function is under way")
    at_limit = error is not None and any(_LIMIT in type(each).__name__ for each in _chain(error))
    around = Around(state, watch.earlier_calls.before(call), wrong, at_limit)
    forms, why_none = call_sources(call, around)
    return RecordedCall(tuple(forms), why_none, call.fullgraph)


def _without_transforms(stack: Sequence[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """The frames that may stay eager: not those of torch.func and Dynamo, which call what they were given."""
    inside = ("/torch/_functorch/", "/torch/_dynamo/")
    return [
        each for each in stack if not any(folder in each.filename.replace("\\", "/") for folder in inside)
    ]


# ---- captures that were given up, and what they left behind


class Capture:
    """One look of Dynamo's at a frame: `with capture.kept(): ...` around it, `failed` by whoever sees the compile fail,
    then `given_up`.

    What is put in force with an object, for as long as that lives, may live on in the traceback of an error that Dynamo
    swallows. When that is let go of, torch's state is set to what it was at that time: inside of a capture, where
    somebody sets it right again, or after it, and then the function runs in the wrong state. Which of both depends on
    when Python's garbage collector comes by, and so on how much was allocated, by us as well. So nothing is collected
    during a capture: what the compiler leaves broken is not for the watch to mend.
    """

    def __init__(self) -> None:
        self._failed: tuple[tuple[str, str, int], str] | None = None
        self._left: tuple[str, ...] = ()

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """No collection in here; what a capture that was given up has changed in this thread is noted."""
        thresholds = gc.get_threshold()
        state = thread_state()
        if thresholds[0]:  # 0 stands for no collections at all
            gc.set_threshold(max(MOST_OBJECTS, thresholds[0]), *thresholds[1:])
        try:
            yield
            if self._failed is not None:
                now = thread_state()
                self._left = tuple(name for name in state if state[name] != now[name])
        finally:
            gc.set_threshold(*thresholds)

    def failed(self, code: CodeType, error: Exception) -> None:
        """The frame of `code` could not be compiled; `error` itself is not kept, as it would keep more than itself."""
        self._failed = original_function(code), hide_secrets(reason_of(error))

    def given_up(self) -> GivenUp | None:
        """What was given up; None where the frame was compiled, or there was nothing in it to compile."""
        if self._failed is None:
            return None
        return GivenUp(*self._failed[0], reason=self._failed[1], left=self._left)


def reason_of(error: Exception) -> str:
    """In one line, why Dynamo could not capture something.

    >>> reason_of(RuntimeError("Dynamic control flow\\n  Explanation: ..."))
    'Dynamic control flow'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else type(error).__name__
    context = next((line for line in lines if line.startswith(_CONTEXT)), None)
    if first == _RAISED and context is not None:
        first = context.removeprefix(_CONTEXT).strip() or first
    return first[:MOST_REASON]


# ---- tracebacks, in which nothing is ours


def _traceback_text(error: BaseException) -> str:
    hide_our_frames(error)
    return hide_secrets("".join(traceback.format_exception(error)))


def hide_our_frames(error: BaseException) -> None:
    """Takes torchsleuth's own frames out of the tracebacks of `error` and what it was raised from."""
    for each in _chain(error):
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
    return tb.tb_frame.f_code.co_filename.startswith(_OUR_FOLDER)


def compiled_call_place() -> CallPlace | None:
    """Where the program makes the call of a compiled function that is under way; else its line that is being run.

    Between the two are the frames of the compiled function itself, then those of the wrapper that torch.compile made.
    """
    frame = _of_program(caller_of_compiled()) or _of_program(sys._getframe(1))
    return None if frame is None else call_place(frame)


def _of_program(frame: FrameType | None) -> FrameType | None:
    """The frame itself, or the next further out that is the program's."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_installed(file) and not file.startswith(("<", _OUR_FOLDER)):
            break
        frame = frame.f_back
    return frame


def call_place(frame: FrameType) -> CallPlace:
    """The call that a frame is making: `call_place(sys._getframe(1)).place`."""
    first, last, begin, end = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    span = (first, last, begin, end) if None not in (first, last, begin, end) else None
    file, line = frame.f_code.co_filename, frame.f_lineno
    return CallPlace(file, line, frame.f_code.co_name, linecache.getline(file, line).strip(), span)  # type: ignore[arg-type]


def report_overwritten(flight: Flight, error: BaseException, found: Overwritten) -> None:
    """A result of a CUDA graph was used after its memory was taken: by which call, and which one had made it."""
    signature = signature_of_exception(error, "runtime_error", "run")
    again = flight.seen_again((found.made.place, found.by.place, fingerprint(signature)))
    with contextlib.suppress(AttributeError):
        setattr(error, _MARK, AGAIN if again else True)
    own = [each for each in traceback.extract_tb(error.__traceback__) if not is_installed(each.filename)]
    if own:
        used = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
        found = replace(found, used=used)
    made = found.made
    if not again:
        failure = Failure(
            signature,
            _traceback_text(error),
            time.time(),
            function=made.function,
            frames=((made.file, made.line, made.function),),
            call=RecordedCall(why_none="it takes several calls, and a result that is kept between them"),
            overwritten=found,
        )
        _report_call(flight, failure, (made.file, made.line))


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
