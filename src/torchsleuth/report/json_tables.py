"""Any JSON document as tables of text, bounded: what other verbs left is shown without knowing their every field."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_TABLES, MOST_ROWS, MOST_COLUMNS, LONGEST = 6, 60, 8, 160


@dataclass(frozen=True)
class JsonTable:
    """Rows of text under columns; `more` rows are left out."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: int = 0


def json_tables(doc: Any) -> list[JsonTable]:
    """The plain facts of a document, then a table for each list in it.

    >>> [table.columns for table in json_tables({"n": 1, "breaks": [{"line": 3, "why": "print"}]})]
    [('what', 'is'), ('line', 'why')]
    """
    if isinstance(doc, list):
        doc = {"": doc}
    if not isinstance(doc, Mapping):
        doc = {"": doc}
    lists = {key: value for key, value in doc.items() if isinstance(value, list) and value}
    facts = [(str(key), _text(value)) for key, value in doc.items() if key not in lists]
    tables = []
    if facts:
        tables.append(JsonTable("", ("what", "is"), tuple(facts[:MOST_ROWS]), max(0, len(facts) - MOST_ROWS)))
    tables += [_table(str(key), value) for key, value in lists.items()]
    return tables[:MOST_TABLES]


def _table(title: str, rows: Sequence[Any]) -> JsonTable:
    shown, more = rows[:MOST_ROWS], max(0, len(rows) - MOST_ROWS)
    if not all(isinstance(row, Mapping) for row in shown):
        return JsonTable(title, ("",), tuple((_text(row),) for row in shown), more)
    columns = tuple(dict.fromkeys(str(key) for row in shown for key in row))[:MOST_COLUMNS]
    return JsonTable(
        title, columns, tuple(tuple(_text(row.get(name, "")) for name in columns) for row in shown), more
    )


def _text(value: Any) -> str:
    if isinstance(value, str):
        text = value
    elif isinstance(value, float):
        text = f"{value:.6g}"
    else:
        try:
            text = json.dumps(value) if value is not None else ""
        except RecursionError:
            text = "…"
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
