"""Any JSON document as tables of text, bounded: what other verbs left is shown without knowing their every field."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_TABLES, MOST_ROWS, MOST_COLUMNS, MOST_INSIDE, LONGEST = 6, 60, 10, 6, 240


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
    text = _words(value, 3)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _words(value: Any, depth: int) -> str:
    """A value in words: a place as `model.py:9 code`, several as a list, what is too deep left out."""
    if value is None or value == "" or depth < 0:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        shown = [_words(each, depth - 1) for each in value[:MOST_INSIDE]]
        rest = [f"{len(value) - MOST_INSIDE} more"] if len(value) > MOST_INSIDE else []
        return ", ".join([each for each in shown if each] + rest)
    if isinstance(value, Mapping):
        if isinstance(value.get("file"), str) and isinstance(value.get("line"), int):
            return f"{os.path.basename(value['file'])}:{value['line']} {value.get('code') or ''}".rstrip()
        inside = [(str(key), _words(each, depth - 1)) for key, each in list(value.items())[:MOST_INSIDE]]
        return "; ".join(f"{key} {each}" for key, each in inside if each)
    return str(value)
