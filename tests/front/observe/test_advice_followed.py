"""Advice of `explain` and `recompiles`, followed as it is printed: the breaks and the recompilations that it is for are gone.

The pieces are those of `benchmarks/advice.py`, which applies them; those that take processes of their own are not run here.
"""

import pytest

import advice


@pytest.mark.parametrize("name", [name for name, piece in advice.PIECES.items() if not piece.verb])
def test_a_piece_of_advice_does_what_it_says(name, tmp_path):
    row = advice.followed(advice.PIECES[name], tmp_path)
    assert row["holds"], row


def test_a_piece_that_is_not_printed_or_does_nothing_is_found(tmp_path):
    nothing = advice.breaks("return x.sin()", advice.paste)
    assert not advice.followed(nothing, tmp_path)["holds"]
    idle = advice.compiles(advice.SINE, advice.SIZES, lambda program, printed: program)
    row = advice.followed(idle, tmp_path)
    assert (row["before"], row["after"], row["holds"]) == (1, 1, False)
