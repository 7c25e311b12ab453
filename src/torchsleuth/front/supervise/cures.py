"""Tries what would cure a program's recompilations: runs it again with the change in place, unseen, and counts.

Nothing of the program is touched; marks and settings are put in place from outside, as for a workaround.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torchsleuth.core.change_table import setting
from torchsleuth.core.changes import DYNAMO, Change
from torchsleuth.front.observe.events import read_events
from torchsleuth.front.observe.recompiles import Recompiles, TriedCure, recompiles_of
from torchsleuth.front.supervise.program_runs import Program, recorded


def with_tried_cures(
    found: Recompiles,
    line: Sequence[str],
    cases_dir: Path,
    *,
    base: Change,
    deadline: float,
    note: Callable[[str], None],
) -> Recompiles:
    """`found`, with what became of each cure that could be tried before the deadline.

    `base` is what was changed in the run that found them.
    """
    tried = []
    alone = list(_changes(found))
    for change in [*alone, *_together(alone)]:
        if time.monotonic() >= deadline:
            note("no time is left to try the other cures; --budget S gives more")
            break
        note(f"trying: {change.what}")
        after, why_not = _run_with(change.over(base), line, cases_dir, deadline)
        counts = found.count, after.count, found.limits, after.limits
        tried.append(TriedCure(change.what, *counts, after.causes, why_not))
    return replace(found, tried=tuple(tried))


def _changes(found: Recompiles) -> Iterator[Change]:
    """What can be tried: the marks, dynamic shapes, each setting."""
    wanted = dict.fromkeys((f.function, c.cure.trial) for f in found.functions for c in f.causes)
    trials = dict.fromkeys(trial for _, trial in wanted if trial)
    marks = []
    for function, trial in wanted:
        if trial is not None and trial.startswith("mark:"):
            _, name, index = trial.split(":")
            marks.append((function, name, int(index)))
    if marks:
        how = ", ".join(f"mark_dynamic({name}, {index}) for {function}" for function, name, index in marks)
        yield Change(how, dynamic_dims=tuple(marks))
    if marks or "dynamic" in trials:
        yield Change("torch.compile(..., dynamic=True)", dynamic=True)
    for trial in trials:
        if trial.startswith("set:"):
            name, _, value = trial.removeprefix("set:").partition("=")
            yield setting(name, value, "", DYNAMO, what=f"{DYNAMO}.{name} = {value}")


def _together(alone: Sequence[Change]) -> Iterator[Change]:
    """All of them as one, where they are more than two ways to the same."""
    kinds = {(bool(each.dynamic_dims or each.dynamic), *each.keys) for each in alone}
    if len(kinds) > 1:
        whole = alone[0]
        for each in alone[1:]:
            whole = each.over(whole)
        yield replace(whole, what=f"all of these {len(alone)} together")


def _run_with(
    change: Change, line: Sequence[str], cases_dir: Path, deadline: float
) -> tuple[Recompiles, str]:
    """What recompiles with a change in place, and why that says nothing, if so."""
    left = max(0.0, deadline - time.monotonic())
    with recorded(Program(tuple(line)), change, None, left, cases_dir, observe="recompiles") as found:
        after, result = recompiles_of(read_events(Path(found.settings.spool))), found.run
    if result.timed_out:
        return after, "not known: the program was still running when the time was up"
    return after, f"the program then ends with status {result.status}" if result.status else ""
