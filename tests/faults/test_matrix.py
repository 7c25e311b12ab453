"""Cells of the fault matrix: a few in each run of the tests, all of them with the slow ones."""

import pytest
from matrix import COLUMNS, rows, run_cell, senseless

# One of each kind, and cheap: most of the time goes into loading torch.
SAMPLE = {
    ("KILL of front", "watching"),
    ("KILL of front", "recording"),
    ("TERM of program", "watching"),
    ("SIGBUS", "recording"),
}
CELLS = [(row, column) for row in rows() for column in COLUMNS if not senseless(row, column)]


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("matrix")


@pytest.mark.parametrize(
    ("row", "column"),
    [pytest.param(*cell, marks=[] if cell in SAMPLE else [pytest.mark.slow]) for cell in CELLS],
)
def test_nobody_is_harmed_and_nothing_is_lost(row, column, root):
    assert run_cell(row, column, root) == "ok"
