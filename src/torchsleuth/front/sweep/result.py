"""What a sweep has found, as `sweep.json` and as a table in one HTML page: programs by settings, failures in buckets.

The page has no script and needs no network. Everything on it comes from programs and their failures, so all of it is
escaped.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.scrub import hidden, printable
from torchsleuth.front.sweep.cells import PASSES, Bucket, Cell
from torchsleuth.front.sweep.grid import uncompiled
from torchsleuth.front.sweep.running import Sweep

# Of a repro, what is shown on the page; all of it lies in the case.
MOST_OF_A_SCRIPT = 20_000


@dataclass(frozen=True)
class SweepResult:
    """All that a sweep knows. `known` are buckets and bugs of an earlier one, which do not count for `is_green`.

    `counts` are runs by how they ended; "program" are those left out because the program fails without the compiler.
    """

    about: Mapping[str, object]
    programs: tuple[str, ...]
    settings: tuple[str, ...]
    counts: Mapping[str, int]
    eager: tuple[Cell, ...]
    cells: tuple[Cell, ...]
    buckets: tuple[Bucket, ...]
    known: frozenset[str] = frozenset()

    def knows(self, bucket: Bucket) -> bool:
        """Whether an earlier sweep had this failure, or the bug that it turned out to be."""
        return not self.known.isdisjoint(bucket.keys)

    @property
    def is_green(self) -> bool:
        """Whether every program passed with every setting, but for buckets that are known."""
        known = {each.key for b in self.buckets if self.knows(b) for each in (b, *b.same)}
        forgiven = sum(
            bool(cell.failures) and all(f.bucket in known for f in cell.failures) for cell in self.cells
        )
        return self.counts["passes"] + forgiven == self.counts["wanted"]

    @property
    def others_in_words(self) -> list[str]:
        """What came of the runs that do not pass: `["3 fail in 2 different ways", "1 not done in time"]`."""
        ways = len(self.buckets)
        ways_to_end = {
            "fails": f"fail in {ways} different ways" if ways != 1 else "fail in one way",
            "late": "not done in time",
            "program": "left out because the program fails without the compiler, too",
            "not run": "not run",
        }
        return [f"{number} {what}" for key, what in ways_to_end.items() if (number := self.counts[key])]

    def to_json(self) -> dict[str, object]:
        """The document `sweep.json`."""
        return {
            "schema": 1,
            "about": dict(self.about),
            "programs": list(self.programs),
            "settings": list(self.settings),
            "counts": dict(self.counts),
            "eager": [dataclasses.asdict(cell) for cell in self.eager],
            "cells": [dataclasses.asdict(cell) for cell in self.cells],
            "buckets": [{**dataclasses.asdict(each), "known": self.knows(each)} for each in self.buckets],
        }


def result_of(sweep: Sweep, known: frozenset[str]) -> SweepResult:
    """What a sweep knows by now; `known` is of `known_buckets`."""
    cells = sweep.cells()
    eager = [sweep.cell(program, uncompiled(setting)) for program, setting in sweep.jobs()]
    wanted, own = len(eager), sum(cell is not None and cell.answer != PASSES for cell in eager)
    counts = {answer: sum(cell.answer == answer for cell in cells) for answer in ("passes", "fails", "late")}
    return SweepResult(
        about=sweep.about,
        programs=tuple(program.name for program in sweep.programs),
        settings=tuple(setting.name for setting in sweep.settings),
        counts={**counts, "program": own, "not run": wanted - len(cells) - own, "wanted": wanted},
        eager=tuple(sorted({cell for cell in eager if cell}, key=lambda cell: (cell.program, cell.setting))),
        cells=tuple(cells),
        buckets=tuple(sweep.buckets()),
        known=known,
    )


def known_buckets(path: Path) -> frozenset[str]:
    """The buckets of an earlier sweep and the bugs they turned out to be, from its sweep.json."""
    try:
        buckets = json.loads(path.read_text(encoding="utf-8"))["buckets"]
        every = [each for bucket in buckets for each in (bucket, *bucket.get("same", ()))]
        return frozenset(str(key) for each in every for key in (each["key"], each.get("bug")) if key)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as why:
        raise SleuthError(f"{path} cannot be read as the sweep.json of a sweep ({why})") from None


def page_of(result: SweepResult, scripts: Mapping[str, str]) -> str:
    """The page; `scripts` are the repros by bucket: `page_of(result_of(sweep, known), {})`."""
    eager = {(cell.program, cell.setting): cell for cell in result.eager}
    cells = {(cell.program, cell.setting): cell for cell in result.cells}
    columns = list(dict.fromkeys(cell.setting for cell in result.eager))
    environment = Environment(
        loader=PackageLoader("torchsleuth.front.sweep"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["safe_text"] = lambda text: hidden(printable(str(text), True, MOST_OF_A_SCRIPT))
    return environment.get_template("sweep.html.jinja").render(
        result=result,
        rows=[
            (
                program,
                [eager.get((program, column)) for column in columns],
                [cells.get((program, setting)) for setting in result.settings],
            )
            for program in result.programs
        ],
        columns=columns,
        numbers={
            each.key: number
            for number, bucket in enumerate(result.buckets, 1)
            for each in (bucket, *bucket.same)
        },
        scripts=scripts,
    )
