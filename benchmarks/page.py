"""The tables of BENCHMARKS.md, written from the rows that the benchmarks left in benchmarks/results.

    python benchmarks/guests.py --out benchmarks/results/guests.json     # measures, minutes to hours
    python benchmarks/page.py                                            # writes the tables, at once

Of `results/NAME.json` the whole table goes to `results/NAME.md`; where BENCHMARKS.md says `<!-- NAME -->`, its head and
its last row follow. NAME begins with the name of the script that measured: `healthy-h200` is healthy.py's.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "BENCHMARKS.md"
PRINTERS = {
    "guests": "print_rows",
    "frames": "print_rows",
    "advice": "print_rows",
    "first_look": "print_rows",
    "decisions": "print_rows",
    "gpu": "print_rows",
    "real": "print_bugs",
    "healthy": "print_table",
}
BLOCK = re.compile(r"(<!-- (?!end )(\S+) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def main() -> None:
    tables = {source.stem: table_of(source) for source in sorted((HERE / "results").glob("*.json"))}
    for name, table in tables.items():
        (HERE / "results" / f"{name}.md").write_text(table)
    PAGE.write_text(BLOCK.sub(lambda block: block[1] + summary(block[2], tables[block[2]]), PAGE.read_text()))


def table_of(source: Path) -> str:
    """What the script that measured prints of its rows."""
    script = source.stem.partition("-")[0]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        getattr(importlib.import_module(script), PRINTERS[script])(json.loads(source.read_text()))
    return printed.getvalue()


def summary(name: str, table: str) -> str:
    """The table where it is short, else its head and its last row, and where the rest is."""
    rows = [line for line in table.splitlines() if line.startswith("|")]
    if len(rows) <= 12:
        return "\n".join(rows) + "\n"
    shown = "\n".join([*rows[:2], rows[-1]])
    return f"{shown}\n\nEvery row: `benchmarks/results/{name}.md`.\n"


if __name__ == "__main__":
    main()
