"""Tries what would cure a program's recompilations or graph breaks: runs it again with the change in place, and counts.

Nobody sees such a run, and nothing of the program is touched; marks, settings and lines to paste are put in place from
outside, as for a workaround.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchsleuth.core.change_table import setting
from torchsleuth.core.changes import DYNAMO, Change
from torchsleuth.front.observe.breaks import Breaks, GraphBreak, Tried, breaks_of
from torchsleuth.front.observe.events import Event, read_events
from torchsleuth.front.observe.profile import Profile, profile_of
from torchsleuth.front.observe.profile_text import LEAST_OF_LOOP
from torchsleuth.front.observe.recompiles import Recompiles, recompiles_of
from torchsleuth.front.supervise.program_runs import Program, recorded


@dataclass(frozen=True)
class TryOut:
    """What all runs of one program have in common: `TryOut(["python", "train.py"], cases, base, deadline, print)`.

    `base` is what was changed in the run whose result is to be bettered.
    """

    line: Sequence[str]
    cases_dir: Path
    base: Change
    deadline: float
    note: Callable[[str], None]

    @property
    def late(self) -> bool:
        """Whether there is no time for another run, which is said."""
        if time.monotonic() < self.deadline:
            return False
        self.note("no time is left to try more; raise --budget S")
        return True

    def events(self, change: Change, observe: str) -> tuple[list[Event], str]:
        """What a run with a change in place shows, and why that says nothing, if so."""
        self.note(f"trying: {change.what}")
        left = max(0.0, self.deadline - time.monotonic())
        program, change = Program(tuple(self.line)), change.over(self.base)
        with recorded(program, change, None, left, self.cases_dir, observe=f"frames,{observe}") as found:
            events, result = list(read_events(Path(found.settings.spool))), found.run
        if result.timed_out:
            return events, "not known: the program was still running when the time was up"
        return events, f"the program then ends with status {result.status}" if result.status else ""


def with_tried_cures(found: Recompiles, run: TryOut) -> Recompiles:
    """`found`, with what became of each cure that could be tried: alone, and those together that go together."""
    tried = []
    alone = list(_changes(found))
    for change in [*alone, *_together(alone)]:
        if run.late:
            break
        events, why_not = run.events(change, "recompiles")
        after = recompiles_of(events)
        counts = found.count, after.count, found.limits, after.limits
        tried.append(Tried(change.what, *counts, after.causes, why_not, tuple(change.how.splitlines())))
    return replace(found, tried=tuple(tried))


def with_tried_lines(found: Breaks, run: TryOut) -> Breaks:
    """`found`, with what became of the lines to paste: all of them at once, then those that took their break away.

    Where the program does not get through with all of them, those of each break are tried alone.
    """
    wanted = list(dict.fromkeys(each.reason.paste for each in found.breaks if each.reason.paste))
    pending = [tuple(wanted), *([(lines,) for lines in wanted] if len(wanted) > 1 else [])]
    tried: list[Tried] = []
    breaks = found.breaks
    while pending and not run.late:
        together = pending.pop(0)
        lines = in_order(line for each in together for line in each)
        what = "; ".join(line for line in lines if not line.startswith("import "))
        events, why_not = run.events(Change(what, snippet="\n".join(lines)), "breaks")
        after = breaks_of(events)
        left = {str(each.place): each.place for each in after.breaks}
        names = tuple(f"{Path(place.file).name}:{place.line}" for place in left.values())
        counts = found.graph_break_count, after.graph_break_count
        shown = f"these {len(together)} together" if len(together) > 1 else what
        tried.append(Tried(shown, *counts, left=names, why_not=why_not, paste=lines, counted="graph breaks"))
        if why_not:
            continue
        breaks = tuple(
            replace(each, cured=_is_gone(each, found, after)) if each.reason.paste in together else each
            for each in breaks
        )
        useful = tuple(dict.fromkeys(each.reason.paste for each in breaks if each.cured))
        pending = [useful] if useful and {*useful} < {*together} else []
    return replace(found, breaks=breaks, tried=tuple(tried))


def _is_gone(each: GraphBreak, before: Breaks, after: Breaks) -> bool:
    """Whether a break is not met any more, and no other in its line in its place; a line may have several."""
    there = [[other for other in found.breaks if other.place == each.place] for found in (before, after)]
    return len(there[1]) < len(there[0]) and all(other.type != each.type for other in there[1])


# Puts a mark on a function as a decorator above it would, wherever in its file it is defined.
_REGION = """
import os, sys, types
def _mark(owner):
    for name, found in list(vars(owner).items()):
        if isinstance(found, types.FunctionType) and name == {name!r}:
            code = found.__code__
            last = max((line or 0 for _, _, line in code.co_lines()), default=0)
            if code.co_filename == {file!r} and code.co_firstlineno <= {line} <= last:
                setattr(owner, name, torch.compiler.nested_compile_region(found))
for module in list(sys.modules.values()):
    if os.path.abspath(getattr(module, "__file__", None) or "") == os.path.abspath({file!r}):
        _mark(module)
        for each in [each for each in vars(module).values() if isinstance(each, type)]:
            _mark(each)
"""


def with_tried_region(found: Profile, run: TryOut) -> Profile:
    """`found`, with what compiling the body of its loop once brings: two runs in empty caches, as it is and so."""
    loop = found.loop
    if loop is None or loop.calls is None or loop.share < LEAST_OF_LOOP:
        return found
    file, line, name = loop.calls
    region = Change(
        f"@torch.compiler.nested_compile_region above `{name}`",
        snippet=_REGION.format(file=file, line=line, name=name),
    )
    seconds: list[float] = []
    for change in (Change("the program as it is, in an empty cache"), region):
        if run.late:
            return replace(found, loop=replace(loop, why_not="the time was up"))
        events, why_not = run.events(change, "times")
        if why_not:
            return replace(found, loop=replace(loop, why_not=why_not))
        seconds.append(profile_of(events).seconds)
    return replace(found, loop=replace(loop, whole=seconds[0], once=seconds[1]))


def in_order(lines: Iterable[str]) -> tuple[str, ...]:
    """Each line once, what is imported first: `in_order(["b = 1", "import b"]) == ("import b", "b = 1")`."""
    return tuple(sorted(dict.fromkeys(lines), key=lambda line: not line.startswith("import ")))


def _changes(found: Recompiles) -> Iterator[Change]:
    """What can be tried: the marks, dynamic shapes, each setting."""
    wanted = dict.fromkeys((f.function, c.cure.trial, c.cure.how) for f in found.functions for c in f.causes)
    trials = dict.fromkeys(trial for _, trial, _ in wanted if trial)
    marks, pasted = [], []
    for function, trial, how in wanted:
        if trial is not None and trial.startswith("mark:"):
            _, name, index = trial.split(":")
            marks.append((function, name, int(index)))
            pasted.append(f"{how.partition(' before')[0]}  # {name} of {function}, before each call")
    if marks:
        what = ", ".join(f"mark_dynamic({name}, {index}) for {function}" for function, name, index in marks)
        yield Change(what, how="\n".join(pasted), dynamic_dims=tuple(marks))
    if marks or "dynamic" in trials:
        yield Change(_DYNAMIC, how=_DYNAMIC, dynamic=True)
    for trial in trials:
        if trial.startswith("set:"):
            name, _, value = trial.removeprefix("set:").partition("=")
            yield setting(name, value, "", DYNAMO, what=f"{DYNAMO}.{name} = {value}")


_DYNAMIC = "torch.compile(..., dynamic=True)"


def _together(alone: Sequence[Change]) -> Iterator[Change]:
    """The settings, with the marks, and with dynamic shapes instead: the two are ways to the same."""
    settings = [each for each in alone if each.keys]
    for shapes in [each for each in alone if not each.keys]:
        if not settings:
            return
        whole = shapes
        for each in settings:
            whole = each.over(whole)
        every = [*settings, shapes]
        yield replace(
            whole, what=" and ".join(each.what for each in every), how="\n".join(each.how for each in every)
        )
