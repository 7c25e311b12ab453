"""What is said to have helped, of lines that were tried on a program."""

from dataclasses import replace

import pytest

from torchsleuth.front.observe.break_reasons import BreakReason
from torchsleuth.front.observe.breaks import Breaks, GraphBreak, Place
from torchsleuth.front.supervise import cures

PLACE = Place("a.py", 3, "f", "return torch.nonzero(y).sum() + y.tolist()[0]")
PASTE = ("torch._dynamo.config.capture_dynamic_output_shape_ops = True",)
NONZERO = GraphBreak(
    PLACE, "Data dependent", None, BreakReason("", "", "", (), paste=PASTE), (PLACE,), (), (), 1, 1, 1, 1
)
TOLIST = replace(NONZERO, type="Tensor.tolist", reason=BreakReason("", "", "", ()))
BRANCH = replace(TOLIST, type="Data-dependent branching")


class OneRun:
    """A program that has these breaks with whatever is pasted."""

    late = False

    def events(self, _change, _observe):
        return [], ""


@pytest.mark.parametrize(
    ("before", "after", "cured"),
    [
        pytest.param([NONZERO, TOLIST], [TOLIST], True, id="another break of the line stays as it was"),
        pytest.param([NONZERO], [BRANCH], False, id="the line breaks for another reason now"),
        pytest.param([NONZERO, TOLIST], [TOLIST, BRANCH], False, id="and so does a line with two"),
        pytest.param([NONZERO], [NONZERO], False, id="it breaks as before"),
        pytest.param([NONZERO], [], True, id="it is gone"),
    ],
)
def test_lines_are_said_to_help_where_their_break_is_gone_and_no_other_came(
    monkeypatch, before, after, cured
):
    monkeypatch.setattr(cures, "breaks_of", lambda _: Breaks(tuple(after), (), 1, 0))
    found = cures.with_tried_lines(Breaks(tuple(before), (), 1, 0), OneRun())
    assert found.breaks[0].cured is cured
