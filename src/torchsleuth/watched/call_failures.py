"""Failures of calls, where no graph fails: captures that stop or are wrong, and results that CUDA graphs overwrote.

What is kept then is the call as the user wrote it, as program text. And what a capture that was given up left behind.

Two calls of one function are compared by what they left behind, in words. Both ran the same kernels in the same order,
one after Dynamo's capture and one without it, so almost nothing but the same bits is the same; the little that may
differ, may do so for numbers that Dynamo turns into tensors.
"""

from __future__ import annotations

import contextlib
import gc
import linecache
import math
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import TYPE_CHECKING

import torch

from torchsleuth.core.cases.record import AmbientState
from torchsleuth.core.protocol.failures import (
    CallPlace,
    Failure,
    GivenUp,
    RecordedCall,
    WrongCall,
)
from torchsleuth.script_runtime.hiding import hide_secrets
from torchsleuth.script_runtime.signature import Signature, fingerprint, signature_of_exception
from torchsleuth.torch_core.compare.reference.cloning import same_bits
from torchsleuth.torch_core.graphs.provenance import calling_line
from torchsleuth.torch_internals import hooks as seams
from torchsleuth.torch_internals.compiled_calls import CallUnderWay, call_under_way, caller_of_compiled
from torchsleuth.torch_internals.frames import original_function
from torchsleuth.torch_internals.modes import thread_state
from torchsleuth.watched.call_source import Around, call_sources
from torchsleuth.watched.call_state import CALL, Leaf, Leaves, is_below
from torchsleuth.watched.failures import MARK, OUR_FOLDER, chain_of, report_call, traceback_text
from torchsleuth.watched.flight import Flight
from torchsleuth.watched.startup import is_installed

if TYPE_CHECKING:
    from torchsleuth.watched.watch import Watch

# In the names of what Dynamo raises where a function was compiled too often.
_LIMIT = "LimitHit"
# Some 50 MB of small objects; a capture that makes more of them is collected as ever.
MOST_OBJECTS = 200_000
MOST_REASON = 200
# What torch says where the traced code raises, which alone says nothing.
_RAISED = "Observed exception"
_CONTEXT = "Developer debug context:"


def report_capture_error(
    watch: Watch, flight: Flight, frame: seams.FrameCapture, error: BaseException, state: AmbientState
) -> None:
    """Dynamo failed before there was a graph: the call is kept instead, and a bug of the program told apart.

    `state` is that of the program when the frame was looked at: its modes.
    """
    signature = signature_of_exception(error, "capture_error", "capture")
    with contextlib.suppress(AttributeError):
        setattr(error, MARK, True)
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
    report_call(
        flight,
        Failure(
            signature,
            traceback_text(error),
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
    report_call(
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
    at_limit = error is not None and any(_LIMIT in type(each).__name__ for each in chain_of(error))
    around = Around(state, watch.earlier_calls.before(call), wrong, at_limit)
    forms, why_none = call_sources(call, around)
    return RecordedCall(tuple(forms), why_none, call.fullgraph)


def _without_transforms(stack: Sequence[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """The frames that may stay eager: not those of torch.func and Dynamo, which call what they were given."""
    inside = ("/torch/_functorch/", "/torch/_dynamo/")
    return [
        each for each in stack if not any(folder in each.filename.replace("\\", "/") for folder in inside)
    ]


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
        if not is_installed(file) and not file.startswith(("<", OUR_FOLDER)):
            break
        frame = frame.f_back
    return frame


def call_place(frame: FrameType) -> CallPlace:
    """The call that a frame is making: `call_place(sys._getframe(1)).place`."""
    first, last, begin, end = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    span = (first, last, begin, end) if None not in (first, last, begin, end) else None
    file, line = frame.f_code.co_filename, frame.f_lineno
    return CallPlace(file, line, frame.f_code.co_name, linecache.getline(file, line).strip(), span)  # type: ignore[arg-type]


# What is compared with eager: the call as Dynamo captures it, or as all of the compiler makes it, which rounds more.
# In another process than eager's a device may have chosen another kernel for it.
CAPTURED, COMPILED, ELSEWHERE = "captured", "compiled", "captured elsewhere"


_WIDER = {CAPTURED: 1.0, COMPILED: 100.0, ELSEWHERE: 10.0}


# Sentences that a case keeps.
MOST_DIFFERENCES = 10


MAY_DIFFER = {torch.float64: 1e-7, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 2e-2}


# An assertion on a tensor becomes a check inside the graph, which raises this: torch says so in its manual.
SAME_ERRORS = {"raises AssertionError", "raises RuntimeError"}


@dataclass(frozen=True)
class Difference:
    """Where two calls differ, and how: `Difference("result[0]", "result[0] is ...")`."""

    path: str
    sentence: str


@dataclass(frozen=True)
class CallVerdict:
    """What came of comparing a call: where it differs, in words, by whose doing and whether because it `raises`, and
    the `call` as a program; or why it could not be compared."""

    why_not: str | None = None
    how: str = CAPTURED
    paths: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()
    raises: bool = False
    call: RecordedCall = field(default_factory=RecordedCall)


def differences(eager: Leaves, other: Leaves, how: str = CAPTURED) -> list[Difference]:
    """Where the calls differ, without what only follows from a difference above it; `how` the other was made.

    >>> before, after = {"result": Leaf("torch.Size", "of 1 items")}, {"result": Leaf("tuple", "of 1 items")}
    >>> differences(before, after)[0].sentence
    'result is a torch.Size of 1 items in eager and a tuple of 1 items when compiled'
    """
    found: list[Difference] = []
    wider = _WIDER[how]
    for path in [*eager, *(path for path in other if path not in eager)]:
        if any(is_below(path, known.path) for known in found):
            continue
        words = _how(eager.get(path), other.get(path), wider)
        if words is not None:
            found.append(Difference(path, f"{path} {words}"))
    return found


def most_telling(paths: list[str]) -> list[str]:
    """What the call itself gives comes first; few, for they go through a pipe while nobody reads it.

    >>> most_telling(["args[0]", "result"])
    ['result', 'args[0]']
    """
    return sorted(paths, key=lambda path: not path.startswith((CALL, "result")))[:MOST_DIFFERENCES]


def verdict_on(found: list[Difference], how: str, call: RecordedCall) -> CallVerdict:
    """What a case is told of the differences that count: `verdict_on([], CAPTURED, RecordedCall())`."""
    sentences = {each.path: each.sentence for each in found}
    kept = most_telling(list(sentences))
    told = tuple(sentences[path] for path in kept)
    return CallVerdict(None, how, tuple(kept), told, CALL in sentences, call)


def _how(eager: Leaf | None, captured: Leaf | None, wider: float) -> str | None:
    if eager is None or captured is None:
        return "is there only in eager" if captured is None else "is there only when compiled"
    if eager.kind.startswith("raises") and {eager.kind, captured.kind} <= SAME_ERRORS:
        return None
    if eager.kind != captured.kind or not _same_text(eager, captured, wider):
        is_ = "" if eager.kind.startswith(("raises", "returns")) else "is "
        return f"{is_}{_described(eager)} in eager and {_described(captured)} when compiled"
    if eager.tensor is None or captured.tensor is None:
        return None
    return _apart(eager.tensor, captured.tensor, wider)


def _same_text(eager: Leaf, captured: Leaf, wider: float) -> bool:
    if eager.text == captured.text:
        return True
    if eager.kind.startswith("raises"):
        return eager.kind == captured.kind
    if eager.kind != "float":
        return False
    return math.isclose(float(eager.text), float(captured.text), rel_tol=1e-6 * wider)


def _described(leaf: Leaf) -> str:
    if leaf.kind.startswith(("raises", "returns")):
        return f"{leaf.kind}: {leaf.text[:120]}" if leaf.text else leaf.kind
    if leaf.kind == "same object":
        return f"the same object as {leaf.text}"
    if leaf.kind.rpartition(".")[2] in ("Tensor", "Parameter", "Buffer"):
        return f"a {leaf.kind.rpartition('.')[2]}, {leaf.text}"
    if leaf.kind in ("NoneType", "str"):
        return leaf.text[:160]
    return f"a {leaf.kind} {(leaf.shown or leaf.text)[:160]}".rstrip()


def _apart(eager: torch.Tensor, captured: torch.Tensor, wider: float) -> str | None:
    """How far two tensors of one shape and type are apart; None where that is not worth a word."""
    if eager.numel() == 0 or same_bits(eager, captured):
        return None
    share = MAY_DIFFER.get(eager.dtype, 0.0)
    wide = torch.complex128 if eager.is_complex() else torch.float64
    want, got = eager.to(wide), captured.to(wide)
    if eager.is_complex():
        share = 1e-4
    share *= wider
    # Measured against the largest number: small ones may be what is left of large ones.
    most = float(want.abs().nan_to_num(0.0, 0.0, 0.0).max())
    near = torch.isclose(want, got, rtol=share, atol=share * most, equal_nan=True)
    wrong = int((~near).sum())
    if wrong == 0:
        return None
    far = float((want - got).abs().nan_to_num(math.inf, math.inf, math.inf).max())
    return f"differs in {wrong} of {eager.numel()} elements, by up to {far:.3g}, from eager"
