"""What counts as the same failure: one named rule for each kind of question, and the four answers that it gives.

A run says about the failure looked for that it fails, passes or fails in another way, or nothing can be told. Which of
these it is depends on what was changed: another backend raises the same error from another place, a whole program shows
a status and a type of error, and a workaround has to bring the graph to its end with right numbers. No step compares
signatures itself; it names its rule here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from torchsleuth.script_runtime.signature import Signature, fails_the_same_way


class Answer(Enum):
    """Does it fail the same way? Only the first two are evidence.

    >>> Answer("fails differently").is_evidence
    False
    """

    FAILS = "fails"
    PASSES = "passes"
    OTHER = "fails differently"
    CANNOT_TELL = "cannot tell"

    @property
    def is_evidence(self) -> bool:
        return self in (Answer.FAILS, Answer.PASSES)


@dataclass(frozen=True)
class Criterion:
    """When the failure that a run showed is the one looked for: `criterion.same(expected, seen)`.

    `checked_for` is the kind of failure that the run is checked for, where that is not the kind of the one looked for;
    with `to_the_end` nothing is decided before all of it has run.
    """

    same: Callable[[Signature, Signature], bool]
    checked_for: str | None = None
    to_the_end: bool = False

    def answer(self, expected: Signature, seen: Signature | None, error: str | None = None) -> Answer:
        """What a run that showed `seen` says, None where nothing failed; `error` says why nothing can be told.

        >>> SAME.answer(Signature("crash", "run"), None)
        <Answer.PASSES: 'passes'>
        """
        if seen is None:
            return Answer.PASSES if error is None else Answer.CANNOT_TELL
        return Answer.FAILS if self.same(expected, seen) else Answer.OTHER


# What autograd says of a result that has lost its gradient, where another backend loses that of the result itself.
_LOST = "element # of tensors does not require grad"


def _same_bug(expected: Signature, seen: Signature) -> bool:
    """Wrong numbers are wrong numbers; an error is known by its type and message wherever it now comes from.

    >>> lost = Signature("runtime_error", "run", ("RuntimeError",), _LOST + " and does not have a grad_fn")
    >>> [_same_bug(Signature("accuracy", "run", outputs=(name,)), lost) for name in ("gradients[0]", "outputs[0]")]
    [True, False]
    """
    if fails_the_same_way(expected, seen):
        return True
    if seen.message.startswith(_LOST) and any(name.startswith("gradients") for name in expected.outputs):
        return True
    if {expected.kind, seen.kind} <= {"compile_error", "runtime_error"}:
        return (expected.exceptions[-1:], expected.message) == (seen.exceptions[-1:], seen.message)
    return expected.kind == seen.kind and expected.signal == seen.signal


def _same_across_releases(expected: Signature, seen: Signature) -> bool:
    """Words of torch's come, grow and go from release to release: where one side has none, or the other's and more, an
    error is known by its type and by where in torch it was raised."""
    if _same_bug(expected, seen):
        return True
    errors = {"compile_error", "runtime_error", "capture_error"}
    types = {each.rpartition(".")[2] for s in (expected, seen) for each in s.exceptions[-1:]}
    place = _place_in_torch(expected)
    if not {expected.kind, seen.kind} <= errors or len(types) != 1 or place != _place_in_torch(seen):
        return False
    few, more = sorted((expected.message, seen.message), key=len)
    return bool(place) and few in more


def _place_in_torch(signature: Signature) -> str:
    """The innermost frame where that is torch's; functions of the program may move."""
    innermost = "".join(signature.frames[:1])
    return innermost if "/" in innermost else ""


# The same graph or call, compiled in the same way.
SAME = Criterion(fails_the_same_way)
# Under another backend or with other settings.
SAME_BUG = Criterion(_same_bug)
# A workaround: the whole graph compiles, runs to its end and gives eager's numbers.
CURED = Criterion(_same_bug, checked_for="accuracy", to_the_end=True)
# Without a compiler. Before a run, inputs are made up, and only the same error counts.
PROGRAMS_OWN = Criterion(lambda expected, seen: expected.phase == "run" or _same_bug(expected, seen))
# Programs as text, which get smaller: raised in the same place of torch as well.
SAME_PLACE = Criterion(
    lambda expected, seen: (
        fails_the_same_way(expected, seen) and _place_in_torch(expected) == _place_in_torch(seen)
    )
)
# The same script under another release of torch.
ACROSS_RELEASES = Criterion(_same_across_releases)
# The program once more: on a busy machine a hang may be found in another phase.
ONCE_MORE = Criterion(
    lambda expected, seen: fails_the_same_way(expected, seen) or expected.kind == seen.kind == "hang"
)


def last_word_of(text: str) -> str:
    """The type of the error that a program ended with, by what it wrote last; empty where there is none.

    >>> last_word_of("Traceback ...\\nmy.ValueError: no")
    'ValueError'
    """
    for line in reversed(text.splitlines()):
        head = line.partition(":")[0].strip()
        named = head != "torchsleuth" and head.replace(".", "").isidentifier() and head[-1:].isalnum()
        if line[:1].isalpha() and named:
            return head.rpartition(".")[2]
    return ""


class Run(Protocol):
    """How a run of a whole program ended: `front.supervise.program_runs.ProgramRun` is one."""

    @property
    def status(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def timed_out(self) -> bool: ...
    @property
    def healthy(self) -> bool: ...
    @property
    def last_word(self) -> str: ...
    @property
    def cannot_override(self) -> str: ...
    @property
    def signatures(self) -> Sequence[Signature]: ...


def answer_of_run(first: Run, run: Run) -> Answer:
    """What a bare run says about how the program ended at first: both late, or with one status and type of error.

    >>> from torchsleuth.front.supervise.program_runs import ProgramRun
    >>> answer_of_run(ProgramRun(1, 2.0, tail="ValueError: a"), ProgramRun(1, 3.0, tail="ValueError: b"))
    <Answer.FAILS: 'fails'>
    """
    if run.healthy:
        return Answer.PASSES
    if first.timed_out or run.timed_out:
        alike = first.timed_out and run.timed_out
    else:
        alike = first.status == run.status and first.last_word == run.last_word
    return Answer.FAILS if alike else Answer.OTHER


def answer_of_watched_run(expected: Signature, run: Run, criterion: Criterion = SAME) -> Answer:
    """What a run of the program under watch says about the failure of one of its cases.

    >>> from torchsleuth.front.supervise.program_runs import ProgramRun
    >>> answer_of_watched_run(Signature("crash", "run"), ProgramRun(0, 2.0))
    <Answer.PASSES: 'passes'>
    """
    if run.timed_out:
        return Answer.CANNOT_TELL
    if any(criterion.same(expected, seen) for seen in run.signatures):
        return Answer.FAILS
    return Answer.PASSES if run.healthy and not run.signatures else Answer.OTHER


def answer_of_script(run: Run) -> Answer:
    """What the run of a script of ours says, which ends with a status for that.

    >>> from torchsleuth.front.supervise.program_runs import ProgramRun
    >>> answer_of_script(ProgramRun(1, 2.0)), answer_of_script(ProgramRun(-11, 2.0))
    (<Answer.FAILS: 'fails'>, <Answer.OTHER: 'fails differently'>)
    """
    return {1: Answer.FAILS, 0: Answer.PASSES}.get(run.status, Answer.OTHER)


def why_not_cured(expected: Signature, run: Run) -> str | None:
    """Why a run of the program under watch does not verify a workaround; None where it ended as a healthy run does."""
    if run.timed_out:
        return f"the program was not done within {run.seconds:.0f} s"
    if any(SAME.same(expected, seen) for seen in run.signatures):
        return "the program fails as before"
    if run.signatures:
        return f"the program fails in another way: {run.signatures[0].summary}"
    if run.cannot_override:
        return run.cannot_override
    if not run.healthy:
        word = f" ({run.last_word})" if run.last_word else ""
        return f"the program ends with status {run.status}{word}"
    return None


def difference_to_eager(
    compiled: str | None, uncompiled: Callable[[int], str | None]
) -> tuple[str, str] | None:
    """What a program holds as wrong when it is compiled, and without the compiler; None where that is the same.

    `uncompiled(byte)` runs it without the compiler, fresh memory filled with that: what it holds must not depend on it.

    >>> difference_to_eager("['int 3']", lambda fill: "['int 4']")
    ("['int 3']", "['int 4']")
    """
    expected = None if compiled is None else uncompiled(0x55)
    if compiled is None or expected in (None, compiled) or uncompiled(0xAA) != expected:
        return None
    return compiled, str(expected)
