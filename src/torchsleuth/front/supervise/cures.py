"""Tries what would cure a program's recompilations: runs it again with the change in place, unseen, and counts.

Nothing of the program is touched; marks and settings are put in place from outside, as for a workaround.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchsleuth.core.watching import OBSERVE_VARIABLE, Settings
from torchsleuth.front.observe.events import read_events
from torchsleuth.front.observe.recompiles import Recompiles, TriedCure, recompiles_of
from torchsleuth.front.supervise.leftovers import new_spool
from torchsleuth.front.supervise.program import RunAgain, supervise
from torchsleuth.watched.overrides import Overrides

DYNAMO = "torch._dynamo.config"


def with_tried_cures(
    found: Recompiles,
    line: Sequence[str],
    cases_dir: Path,
    *,
    overrides: Overrides,
    deadline: float,
    note: Callable[[str], None],
) -> Recompiles:
    """`found`, with what became of each cure that could be tried before the deadline.

    `overrides` are those of the run that found them.
    """
    tried = []
    for change in _changes(found, overrides):
        if time.monotonic() >= deadline:
            note("no time is left to try the other cures; --budget S gives more")
            break
        note(f"trying: {change.how}")
        tried.append(_try(found, change, line, cases_dir, deadline))
    return replace(found, tried=tuple(tried))


@dataclass(frozen=True)
class _Change:
    """Something to try: in words, as overrides, and the trials that it stands for."""

    how: str
    overrides: Overrides
    trials: frozenset[str]


def _changes(found: Recompiles, base: Overrides) -> Iterator[_Change]:
    """What can be tried: the marks together, dynamic shapes, each setting."""
    wanted = [(f.function, c.cure.trial) for f in found.functions for c in f.causes if c.cure.trial]
    trials = list(dict.fromkeys(trial for _, trial in wanted))
    marks = []
    for function, trial in wanted:
        if trial.startswith("mark:"):
            _, name, index = trial.split(":")
            marks.append((function, name, int(index)))
    shapes = frozenset(trial for trial in trials if trial.startswith("mark:"))
    if marks:
        how = ", ".join(f"mark_dynamic({name}, {index}) for {function}" for function, name, index in marks)
        yield _Change(how, replace(base, dynamic_dims=tuple(marks)), shapes)
    if shapes or "dynamic" in trials:
        how = "torch.compile(..., dynamic=True)"
        yield _Change(how, replace(base, dynamic=True), shapes | {"dynamic"})
    for trial in trials:
        if trial.startswith("set:"):
            name, _, value = trial.removeprefix("set:").partition("=")
            settings = {**base.config.get(DYNAMO, {}), name: value}
            changed = replace(base, config={**base.config, DYNAMO: settings})
            yield _Change(f"{DYNAMO}.{name} = {value}", changed, frozenset({trial}))


def _try(
    found: Recompiles, change: _Change, line: Sequence[str], cases_dir: Path, deadline: float
) -> TriedCure:
    spool = new_spool(cases_dir)
    try:
        result = supervise(
            line,
            Settings(spool=str(spool), watches_failures=False),
            timeout=None,
            stdout=None,
            note=lambda _: None,
            again=RunAgain(cwd=None, deadline=deadline),
            environment={OBSERVE_VARIABLE: "recompiles", **change.overrides.to_environment()},
        )
        after = recompiles_of(read_events(spool))
    finally:
        shutil.rmtree(spool, ignore_errors=True)
        with contextlib.suppress(OSError):
            spool.parent.rmdir()
    why_not = ""
    if result.late:
        why_not = "not known: the program was still running when the time was up"
    elif result.status:
        why_not = f"the program then ends with status {result.status}"
    before = found.times(change.trials)
    left = after.times(change.trials)
    return TriedCure(change.how, before, left, after.count, round(after.seconds, 6), why_not)
