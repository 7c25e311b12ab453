"""What other verbs left as JSON, in tables: places and lists in words, and no more than a page can bear."""

from hypothesis import given
from hypothesis import strategies as st

from torchsleuth.front.report.html import LONGEST, MOST_COLUMNS, MOST_ROWS, MOST_TABLES, json_tables

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=4), inner, max_size=9),
    max_leaves=60,
)


def test_a_break_is_a_row_that_reads():
    place = {"file": "/home/ada/model.py", "line": 9, "function": "forward", "code": "print(x)"}
    row = {
        "place": place,
        "functions": ["f", "g"],
        "reason": {"words": "print", "hints": []},
        "fatal": False,
        "runs": 3,
    }
    facts, table = json_tables({"graph_break_count": 1, "breaks": [row]})
    assert facts.rows == (("graph_break_count", "1"),)
    assert table.title == "breaks" and table.columns == ("place", "functions", "reason", "fatal", "runs")
    assert table.rows == (("model.py:9 print(x)", "f, g", "words print", "no", "3"),)


def test_rows_beyond_the_bound_are_counted():
    (table,) = json_tables([{"n": n} for n in range(100)])
    assert len(table.rows) == MOST_ROWS and table.more == 40


@given(json_values)
def test_any_document_is_bounded(doc):
    tables = json_tables(doc)
    assert len(tables) <= MOST_TABLES
    for table in tables:
        assert len(table.columns) <= MOST_COLUMNS and len(table.rows) <= MOST_ROWS
        assert all(len(cell) <= LONGEST for row in table.rows for cell in row)
        assert all(len(row) == len(table.columns) for row in table.rows)
