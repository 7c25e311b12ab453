"""What a run says about the failure that is looked for: the one vocabulary of scripts, trials, programs and releases.

Only the first two are evidence: a run that failed in another way, or could not be made, says nothing about the bug.
"""

from __future__ import annotations

from enum import Enum

from torchsleuth.script_runtime.signature import Signature, fails_the_same_way


class Answer(Enum):
    """Does it fail the same way?

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


def answer_of(expected: Signature, seen: Signature | None) -> Answer:
    """The answer of a run that showed `seen`, None where nothing failed.

    >>> answer_of(Signature("crash", "run"), None)
    <Answer.PASSES: 'passes'>
    """
    if seen is None:
        return Answer.PASSES
    return Answer.FAILS if fails_the_same_way(expected, seen) else Answer.OTHER
