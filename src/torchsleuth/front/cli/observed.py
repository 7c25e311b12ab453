"""What the verbs share that run a program to look at it: `explain`, `recompiles`, `profile`, `trace`.

    @click.command("explain", cls=ProgramCommand)
    @program_to_observe
    def explain_verb(program: ProgramToObserve) -> int:
        with observed_run(program, ("breaks",)) as run:
            ...
        return run.status

The program runs as it does without us, with collectors in its processes (`watched/observe/`). It may fail, be stopped
by Ctrl-C or by `--for S`: what it had done until then is what there is to tell, and its status is ours. What of a run
is no failure is said here for `run` as well.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import run_folder, write_result
from torchsleuth.core.cases.spool import LEAST_ROOM
from torchsleuth.core.change_table import RANDOM
from torchsleuth.core.changes import NOTHING, Change, merged
from torchsleuth.core.protocol.failures import CALLS_NOT_COMPARED, NOT_COMPARED, GivenUp, Remark
from torchsleuth.core.protocol.files import write_whole
from torchsleuth.core.watching import OBSERVE_VARIABLE, Settings
from torchsleuth.front.cli.options import (
    STDERR,
    Function,
    cases_option,
    json_option,
    module_option,
    program_line,
)
from torchsleuth.front.cli.output import our_fault, say
from torchsleuth.front.observe.events import Event, failed_compiles, read_events, was_cut
from torchsleuth.front.supervise.leftovers import temporary_spool
from torchsleuth.front.supervise.program import Supervised, supervise

MOST_FAILURES_SAID = 5

same_random_option: Callable[[Function], Function] = click.option(
    "--same-random",
    is_flag=True,
    envvar="TORCHSLEUTH_SAME_RANDOM",
    help="Compiled graphs draw the random numbers that eager would draw.",
)


@dataclass(frozen=True)
class ProgramToObserve:
    """What a person asked for: the command line, how long, which functions, where results go."""

    line: list[str]
    cases_dir: Path
    as_json: bool = False
    only: str | None = None
    ends_after: float | None = None
    same_random: bool = False

    def changed(self, change: Change) -> Change:
        """This change, and what the person asked for."""
        if not self.same_random:
            return change
        return replace(change, config=merged(RANDOM.config, change.config))


@dataclass(frozen=True)
class ObservedRun:
    """What a run left: its events, the spool (until the `with` block ends) and the folder for results.

    `program_status` is the program's own; `status` what we end with: that, or 0 where `--for` ended it.
    """

    id: str
    spool: Path
    folder: Path
    events: tuple[Event, ...]
    program_status: int
    late: bool
    seconds: float

    @property
    def status(self) -> int:
        return 0 if self.late else self.program_status

    def facts(self) -> dict[str, object]:
        """What every document about a run begins with."""
        return {
            "run": self.id,
            "path": str(self.folder),
            "program_status": self.program_status,
            "ended_early": self.late,
            "seconds": round(self.seconds, 3),
            "truncated": was_cut(self.events),
            "failed_compiles": [failed.to_json() for failed in failed_compiles(self.events)],
        }

    def keep(self, name: str, result: object) -> Path:
        """Writes a result into the run's folder: `run.keep("breaks.json", document)`."""
        return write_result(self.folder, name, result)

    def keep_logs(self) -> list[Path]:
        """Copies what the compiler logged, and torch's own trace, into the run's folder."""
        kept = []
        for path in sorted([*self.spool.glob("torch-trace-*.log"), *self.spool.glob("compiler-*.log")]):
            if path.is_file() and not path.is_symlink():
                text = path.read_text(encoding="utf-8", errors="replace")
                kept.append(write_result(self.folder, path.name, text))
        return kept


def program_to_observe(function: Callable[..., int]) -> Callable[..., int]:
    """Adds the options and the argument that name a program; the verb gets them as `program`."""

    @click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
    @json_option
    @cases_option
    @same_random_option
    @click.option(
        "--only", metavar="NAME", envvar="TORCHSLEUTH_ONLY", help="Look only at functions of that name."
    )
    @click.option(
        "--for",
        "ends_after",
        type=click.FloatRange(min=0, min_open=True),
        metavar="S",
        help="End the program after S seconds, as Ctrl-C would, and report what was seen until then.",
    )
    @module_option
    @functools.wraps(function)
    def verb(
        *,
        module: str | None,
        ends_after: float | None,
        only: str | None,
        same_random: bool,
        cases_dir: Path,
        as_json: bool,
        command: Sequence[str],
        **options: object,
    ) -> int:
        line = program_line(module, command, cases_dir)
        program = ProgramToObserve(line, cases_dir, as_json, only, ends_after, same_random)
        return function(program=program, **options)

    return verb


@contextlib.contextmanager
def observed_run(
    program: ProgramToObserve,
    collectors: Sequence[str],
    *,
    change: Change = NOTHING,
    watches_failures: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Iterator[ObservedRun]:
    """Runs the program to its end with these collectors, and with its compiles changed by `change`.

    `environment` is what the collectors are told beside that. The spool is gone after the block.
    """
    given = {
        **os.environ,
        **(environment or {}),
        OBSERVE_VARIABLE: ",".join(("frames", *collectors)),
        **(program.changed(change).to_environment()),
    }
    with temporary_spool(program.cases_dir) as spool:
        settings = Settings(spool=str(spool), only=program.only, watches_failures=watches_failures)
        started = time.monotonic()
        result = supervise(
            program.line,
            settings,
            given,
            note=say,
            timeout=None,
            until=started + (program.ends_after or math.inf),
            stdout=STDERR if program.as_json else None,
        )
        _say_how_it_ended(result, program)
        run = run_of(spool, program.cases_dir, result, time.monotonic() - started)
        _say_what_failed(run, program)
        yield run


def run_of(spool: Path, cases_dir: Path, result: Supervised, seconds: float) -> ObservedRun:
    """What a run left in its spool, and the folder for what is made of it."""
    return ObservedRun(
        id=spool.name,
        spool=spool,
        folder=run_folder(cases_dir, spool.name),
        events=read_events(spool),
        program_status=result.status,
        late=result.late,
        seconds=seconds,
    )


def _say_what_failed(run: ObservedRun, program: ProgramToObserve) -> None:
    failed = failed_compiles(run.events)
    for each in failed[:MOST_FAILURES_SAID]:
        say(f"the {each}")
    if len(failed) > MOST_FAILURES_SAID:
        say(f"{len(failed) - MOST_FAILURES_SAID} more compiles failed")
    if failed:
        say(f"`torchsleuth run {shlex.join(program.line[1:])}` finds out why, and what to do about it")


def _say_how_it_ended(result: Supervised, program: ProgramToObserve) -> None:
    until = "what follows is what was seen until then"
    if result.late:
        say(f"ended after {program.ends_after:g} s, as --for says; {until}")
    elif result.interrupted:
        say(f"the program was interrupted; {until}")
    elif result.status > 128 and result.status - 128 in set(signal.Signals):
        name = signal.Signals(result.status - 128).name
        say(f"the program was ended by {name}; {until}. `torchsleuth run` records such an end as a case")
    elif result.status:
        say(f"the program ended with status {result.status}; {until}")


def say_no_graph(program: ProgramToObserve, run: ObservedRun) -> None:
    """Says that this run has no graph to tell of, and why; compiles that failed were told before."""
    if program.only is not None:
        say(f"no function called {program.only} was compiled; without --only all that are compiled are told")
    elif failed_compiles(run.events):
        say("no other graph was compiled")
    elif stopped := capture_stopped(run.events):
        names = ", ".join(f"`{name}`" for name in stopped[:3])
        say(
            f"no graph came of {names}: `torchsleuth explain {shlex.join(program.line[1:])}` shows where capture stops"
        )
    elif run.program_status:
        say("nothing had been compiled by then")
    else:
        say_nothing_compiled()


def capture_stopped(events: Iterable[Event]) -> tuple[str, ...]:
    """The functions whose capture was given up, each once; one without tensors is skipped, not given up.

    >>> [broke, skipped] = [{"function": "f", "outcome": "Unsupported"}, {"function": "g", "outcome": "skipped"}]
    >>> capture_stopped([Event("frame", 0.0, 7, broke), Event("frame", 1.0, 7, skipped)])
    ('f',)
    """
    given_up = (
        e for e in events if e.kind == "frame" and e.fields.get("outcome") not in ("compiled", "skipped")
    )
    return tuple(dict.fromkeys(str(event.fields.get("function")) for event in given_up))


def say_nothing_compiled() -> None:
    """Says so, and why that may be."""
    say(
        "nothing was compiled: torch.compile was given no function or module of the program's own that works on "
        "tensors. (torch 2.13 and older compile nothing for `.compile()` on a module of torch.nn itself, such as "
        "nn.Sequential: compile a function or module of yours that calls it)"
    )


# -- what `run` says of a program beside its cases


def say_given_up(given_up: list[GivenUp], graphs: int) -> None:
    """A function that Dynamo gave up runs uncompiled, which nobody notices; what it left behind may end the program."""
    if not given_up:
        return
    first = min(given_up, key=lambda each: not each.left)
    others = f" and {len(given_up) - 1} more" if len(given_up) > 1 else ""
    nothing = "" if graphs else "nothing was compiled: "
    place = f"{Path(first.file).name}:{first.line}"
    say(
        f"{nothing}Dynamo gave up `{first.function}` ({place}){others}, which ran uncompiled: {first.reason}; "
        "`torchsleuth explain` shows where capture stops"
    )
    if first.left:
        say(
            f"that capture left {first.left_in_words} of the thread changed: what runs after it may fail or be wrong; "
            "whether that happens may depend on when Python's garbage collector comes by"
        )


WORDS = {
    "LESS_PRECISE": "less precise than eager, and right",
    "INCONCLUSIVE": "not to be told right from wrong",
    "EAGER_SUSPECT": "further from float64 in eager than compiled",
    NOT_COMPARED: "not compared with eager",
}


def say_remarks(remarks: list[Remark]) -> None:
    """A line for each kind of thing that comparing with eager showed and that is no failure: the one that says most."""
    for kind, words in WORDS.items():
        alike = [remark for remark in remarks if remark.kind == kind]
        if alike:
            most = max(alike, key=lambda remark: remark.times_eager)
            graphs = "1 graph is" if len(alike) == 1 else f"{len(alike)} graphs are"
            where = f"graph {most.graph} ({most.direction} of {most.function})"
            say(f"{graphs} {words}; {where}, {most.sentence}")
    for sentence in dict.fromkeys(each.sentence for each in remarks if each.kind == CALLS_NOT_COMPARED):
        say(sentence)


def explained(
    program: Sequence[str], spool: Path, cases_dir: Path, result: Supervised, seconds: float
) -> str | None:
    """Writes what the collectors saw into the run's folder; its id, or None where that cannot be written."""
    from torchsleuth.front.report.pages import COLLECTED, headlines, write_run

    try:
        run = run_of(spool, cases_dir, result, seconds)
        found = {name: kind.of(run.events) for name, kind in COLLECTED.items()}
        page = write_run(run.folder, shlex.join(program), run.facts(), found)
        for line in headlines(found):
            say(line.replace(os.getcwd() + os.sep, ""))
        run.keep_logs()
        say(f"page: {page}")
    except SleuthError as why:
        say(str(why))
        return None
    except Exception as error:  # the cases, and the program's own status, do not depend on it
        our_fault(error)
        return None
    return run.id


def why_not_recorded(spool: Path) -> str | None:
    """Why a watched process could not have left anything; None where it could."""
    try:
        (spool / "probe").mkdir()
        try:
            write_whole(spool / "probe" / "room", bytes(LEAST_ROOM))
        finally:
            shutil.rmtree(spool / "probe", ignore_errors=True)
    except OSError as failure:
        return failure.strerror or str(failure)
    return None
