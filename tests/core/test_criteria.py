"""What counts as the same failure, by who asks."""

from dataclasses import replace

import pytest

from torchsleuth.core.criteria import (
    ACROSS_RELEASES,
    CURED,
    ONCE_MORE,
    PROGRAMS_OWN,
    SAME,
    SAME_BUG,
    SAME_PLACE,
    Answer,
)
from torchsleuth.script_runtime.signature import Signature

WRONG = Signature("accuracy", "run", outputs=("outputs[0]",))
LOWERING = Signature(
    "compile_error", "compile", ("KeyError",), "no such thing here", ("torch/_inductor/lowering.py:f",)
)
AT_RUN = Signature("runtime_error", "run", ("KeyError",), "no such thing here", ("program.py:f",))
ABORT = Signature("crash", "run", signal="SIGABRT")
BARE = Signature("compile_error", "compile", ("AssertionError",), "", ("torch/_inductor/ir.py:resize",))
WORDED = replace(BARE, message="expected a static size")
ELSEWHERE = replace(WORDED, frames=("torch/_inductor/ir.py:other",))
HANG = Signature("hang", "compile")


@pytest.mark.parametrize(
    ("criterion", "expected", "seen", "same"),
    [
        (SAME, LOWERING, AT_RUN, False),
        # Under another backend an error is known by its type and message, wherever it now comes from.
        (SAME_BUG, LOWERING, AT_RUN, True),
        (SAME_BUG, WRONG, Signature("accuracy", "run"), True),
        (SAME_BUG, ABORT, Signature("crash", "compile", signal="SIGABRT"), True),
        (SAME_BUG, ABORT, Signature("crash", "run", signal="SIGSEGV"), False),
        # Without the compiler any failure of a run is the program's; inputs of a compile are made up.
        (PROGRAMS_OWN, AT_RUN, ABORT, True),
        (PROGRAMS_OWN, LOWERING, ABORT, False),
        (PROGRAMS_OWN, LOWERING, AT_RUN, True),
        # A program that gets smaller keeps to the place in torch; its own functions may move.
        (SAME_PLACE, WRONG, WRONG, True),
        (SAME_PLACE, ABORT, Signature("crash", "run", signal="SIGSEGV"), False),
        # Asserts of one release have words in the next; others' words stay what they are, or grow.
        (SAME, BARE, WORDED, False),
        (ACROSS_RELEASES, BARE, WORDED, True),
        (ACROSS_RELEASES, WORDED, BARE, True),
        (ACROSS_RELEASES, BARE, ELSEWHERE, False),
        (ACROSS_RELEASES, WORDED, replace(WORDED, message="expected a static size, got s0"), True),
        (ACROSS_RELEASES, WORDED, replace(WORDED, message="expected a dense layout"), False),
        (ACROSS_RELEASES, LOWERING, AT_RUN, True),
        (ACROSS_RELEASES, BARE, WRONG, False),
        # On a busy machine a hang may be found in another phase.
        (ONCE_MORE, HANG, Signature("hang", "run"), True),
        (SAME, HANG, Signature("hang", "run"), False),
    ],
)
def test_two_failures_are_one_by_the_rule_for_that_question(criterion, expected, seen, same):
    assert criterion.answer(expected, seen) is (Answer.FAILS if same else Answer.OTHER)


def test_what_shows_no_failure_passes_unless_nothing_can_be_told():
    assert CURED.answer(LOWERING, None) is Answer.PASSES
    assert CURED.answer(LOWERING, None, "the time was up") is Answer.CANNOT_TELL
    assert CURED.to_the_end and CURED.checked_for == "accuracy"
