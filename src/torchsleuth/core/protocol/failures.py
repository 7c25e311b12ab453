"""What a watched process reports of a failure, and what its death or its silence stands for: one type for all of them.

A process writes each as `failure-<number>.json` into its folder of the spool; whoever makes a case of it reads it
there (`cases/spool.py`).
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, replace

from torchsleuth.core.protocol.codec import Document
from torchsleuth.script_runtime.signature import Signature, signature_of_exception


@dataclass(frozen=True)
class CallForm:
    """A call as parts of a script: imports, definitions and values, the lines of the call; what it needs and lacks."""

    imports: tuple[str, ...]
    source: str
    setup: tuple[str, ...]
    call: tuple[str, ...]
    notes: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecordedCall:
    """The call of a compiled function as program text, in the forms that can be tried; or why it cannot be written."""

    forms: tuple[CallForm, ...] = ()
    why_none: str | None = None
    fullgraph: bool = False


@dataclass(frozen=True)
class WrongCall:
    """Where a whole call differs from eager: in words, in which (file, function, line), and by whose doing.

    `called_at` is the text of the call in the program: the file, first and last line, first and last column.
    """

    sentences: tuple[str, ...]
    place: tuple[str, str, int]
    component: str = "dynamo"
    called_at: tuple[str, int, int, int, int] | None = None


@dataclass(frozen=True)
class CallPlace:
    """A call in the user's program: its line, and where the expression begins and ends (lines, then bytes of them)."""

    file: str
    line: int
    function: str
    code: str
    span: tuple[int, int, int, int] | None = None

    @property
    def place(self) -> str:
        """As people write it.

        >>> CallPlace("/home/me/train.py", 7, "main", "y = f(x)").place
        'train.py:7'
        """
        return f"{self.file.replace(chr(92), '/').rpartition('/')[2]}:{self.line}"


# Of a failure that is the program's own: what it is about.
KEPT_RESULT = "it keeps a result of a CUDA graph without a copy"


@dataclass(frozen=True)
class Overwritten:
    """A result in the memory of a CUDA graph that was still held when a later call took the memory, and was used then.

    `made` is the call that made it, `by` the one that overwrote it, `used` the line that read it afterwards.
    """

    made: CallPlace
    by: CallPlace
    used: str | None = None


@dataclass(frozen=True)
class Failure:
    """One failure, at `time`, seen `count` times: of a graph whose record lies in the folder `record`, or of a call.

    Of a graph: the forms and values of its `inputs`, the number of the call of each graph that was under way, what was
    found wrong (`accuracy`), and after how many seconds it was given up (`timeout`). Of a call: the function, the
    line a person can change, the frames that may stay eager, how the program was started, the operator that failed and
    how it fails uncompiled.
    """

    signature: Signature
    traceback: str
    time: float
    count: int = 1
    record: str | None = None
    inputs: Document | None = None
    calls: tuple[tuple[str, int], ...] = ()
    accuracy: Document | None = None
    timeout: float | None = None
    function: str | None = None
    torch: str | None = None
    user_line: tuple[str, int, str] | None = None
    frames: tuple[tuple[str, int | None, str], ...] | None = None
    program: Document | None = None
    call: RecordedCall = field(default_factory=RecordedCall)
    op: str | None = None
    fails_in_eager: str | None = None
    capture: WrongCall | None = None
    overwritten: Overwritten | None = None


# Kinds of remarks that are no verdicts: what nobody looked at.
NOT_COMPARED, GRADIENTS_NOT_COMPARED, FURTHER_CALLS, CALLS_NOT_COMPARED = (
    "NOT_COMPARED",
    "GRADIENTS_NOT_COMPARED",
    "FURTHER_CALLS_NOT_COMPARED",
    "CALLS_NOT_COMPARED",
)


@dataclass(frozen=True)
class Remark:
    """What comparing a graph with eager showed that is no failure: the kind of verdict, and how many times further from
    float64 than eager's the worst `output` is; or what was not looked at, and why (then `graph` is 0 for calls)."""

    graph: int
    direction: str
    function: str | None
    kind: str
    sentence: str
    output: str | None = None
    times_eager: float = 1.0


@dataclass(frozen=True)
class LeftOut:
    """A process whose whole calls could not be compared while it ran: how many first calls of functions it made, the
    seconds that are left for comparing, and the bytes it took of each device."""

    calls: int
    seconds: float
    memory: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class ComparedCall:
    """A call that a further run of the program made, whether it `differs` from eager; or why that cannot be told."""

    function: str
    differs: bool = False
    why_not: str | None = None


@dataclass(frozen=True)
class GivenUp:
    """A function that Dynamo could not capture, for a `reason`, and that Python runs uncompiled.

    `left` names the state of the thread that the capture did not leave as it was.
    """

    function: str
    file: str
    line: int
    reason: str
    left: tuple[str, ...] = ()

    @property
    def left_in_words(self) -> str:
        """As in a sentence.

        >>> GivenUp("f", "net.py", 7, "", ("the grad mode", "the dispatch keys")).left_in_words
        'the grad mode and the dispatch keys'
        """
        return " and ".join(self.left)


@dataclass(frozen=True)
class UncaughtError:
    """An error that a program ends with: its type and message, and the innermost line of the program itself."""

    type: str
    message: str
    place: str | None = None
    code: str | None = None
    of_surroundings: bool = False

    @property
    def words(self) -> str:
        """As the last line of a traceback.

        >>> UncaughtError("ValueError", "no\\nand no").words
        'ValueError: no'
        """
        return f"{self.type}: {self.message}".splitlines()[0]


class SubprocException(Exception):
    """Carries what another process printed, as torch's of this name does."""


def signature_of_text(text: str, kind: str, phase: str) -> Signature | None:
    """The signature of the traceback that a text ends with, None where it holds none.

    >>> printed = "Traceback (most recent call last):\\nValueError: no such size"
    >>> signature_of_text(printed, "runtime_error", "run").message
    'no such size'
    """
    head = "Traceback (most recent call last):"
    causes = [each.partition("\nThe above exception was")[0].rstrip() for each in text.split(head)[1:]]
    seen = [signature_of_exception(SubprocException(head + each), kind, phase) for each in causes]
    # Python prints causes first; what carries a cause names it, and has other frames.
    alike = [s for s in seen if len(s.exceptions) > 1 and s.exceptions[-1].endswith(seen[-1].exceptions[-1])]
    return replace(alike[0], exceptions=alike[0].exceptions[1:]) if alike else None


def signal_of_status(returncode: int) -> str:
    """What ended a process: `signal_of_status(-11) == "SIGSEGV"`, `signal_of_status(7) == "exit 7"`."""
    number = -returncode if returncode < 0 else returncode - 128
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"exit {returncode}"


def signature_of_crash(returncode: int, phase: str) -> Signature:
    """The signature of a dead process: `signature_of_crash(-11, "run").signal == "SIGSEGV"`."""
    return Signature("crash", phase, signal=signal_of_status(returncode))


# What faulthandler writes at the head of its dump, on Linux and macOS.
_FATAL = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",
}


def fatal_signal(stacks: str) -> str | None:
    """The signal a process died of, from the stacks it left: "SIGSEGV"; None where they name none."""
    return next((name for text, name in _FATAL.items() if f"Fatal Python error: {text}" in stacks), None)
