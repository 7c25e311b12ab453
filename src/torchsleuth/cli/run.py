"""`run`: the program under watch, then a case for every failure, each with a script that was tried."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

import click

from torchsleuth.cases.errors import CaseInUse, DiskFull, SleuthError
from torchsleuth.cases.folder import CaseFolder
from torchsleuth.cases.spool import WatchedProcess, watched_processes
from torchsleuth.cli.ending import AskedToEnd, our_fault
from torchsleuth.cli.options import budget_option, cases_option, json_option, workers_option
from torchsleuth.cli.output import print_json, say
from torchsleuth.supervise.leftovers import adopt_leftovers, new_spool, spool_path, sweep_scratch
from torchsleuth.supervise.program import Supervised, resolve_command, supervise
from torchsleuth.supervise.second_look import SHARE, look_for_device_fault
from torchsleuth.watched.watch_settings import Settings

EXIT_CASE = 3
STDERR = 2


class NoSuchProgram(SleuthError):
    """There is nothing to run under that name."""

    def __init__(self, word: str) -> None:
        super().__init__(
            f"there is no script {word!r} here and no command of that name; "
            "give a Python file, `-m module`, or `-- launcher …`"
        )


class _RunCommand(click.Command):
    """Ends our own options after `-m MODULE`, as Python does: what follows belongs to the program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with_value = {o for p in self.params if not getattr(p, "is_flag", False) for o in p.opts}
        position = 0
        while position < len(args) and args[position].startswith("-") and args[position] != "--":
            if args[position] == "-m":
                args = [*args[: position + 2], "--", *args[position + 2 :]]
                break
            position += 2 if args[position] in with_value else 1
        return super().parse_args(ctx, args)


@click.command("run", cls=_RunCommand, context_settings={"allow_interspersed_args": False})
@click.option("-m", "module", metavar="MODULE", help="Run a module as a script, like `python -m`.")
@click.option(
    "--after",
    type=click.Choice(["auto", "dynamo", "aot"]),
    default="auto",
    show_default=True,
    envvar=["TORCHSLEUTH_AFTER", "TORCHDYNAMO_REPRO_AFTER"],
    help="Where the failing graph is cut out: after Dynamo, or after AOTAutograd.",
)
@click.option(
    "--level",
    type=click.IntRange(1, 4),
    default=2,
    show_default=True,
    envvar=["TORCHSLEUTH_LEVEL", "TORCHDYNAMO_REPRO_LEVEL"],
    help="1 record; 2 also shrink and verify; 3 also keep every graph; 4 also compare results with eager.",
)
@click.option(
    "--check-accuracy",
    is_flag=True,
    envvar="TORCHSLEUTH_CHECK_ACCURACY",
    help="Compare every graph's first calls with eager (level 4).",
)
@click.option(
    "--check-every",
    type=click.IntRange(1),
    metavar="N",
    envvar="TORCHSLEUTH_CHECK_EVERY",
    help="Compare every Nth call of each graph with eager, for long runs.",
)
@click.option(
    "--record-only", is_flag=True, envvar="TORCHSLEUTH_RECORD_ONLY", help="Stop once cases are written."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    envvar="TORCHSLEUTH_TIMEOUT",
    help="A compile or compiled call that takes longer is a hang: it becomes a case and the program is ended.",
)
@budget_option(
    600, "Seconds for everything after the program has ended.", least=0, envvar="TORCHSLEUTH_BUDGET"
)
@workers_option
@click.option(
    "--no-minify", is_flag=True, envvar="TORCHSLEUTH_NO_MINIFY", help="Stop once original.py was tried."
)
@click.option("--only", metavar="NAME", envvar="TORCHSLEUTH_ONLY", help="Watch only functions of that name.")
@click.option(
    "--keep-going",
    is_flag=True,
    envvar="TORCHSLEUTH_KEEP_GOING",
    help="Run a graph that cannot be compiled in eager, so that further failures are found.",
)
@cases_option
@json_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def run_verb(
    module: str | None,
    after: str,
    level: int,
    check_accuracy: bool,
    check_every: int | None,
    record_only: bool,
    timeout: float | None,
    budget: float,
    workers: str,
    no_minify: bool,
    only: str | None,
    keep_going: bool,
    cases_dir: Path,
    as_json: bool,
    command: tuple[str, ...],
) -> int:
    """Run a program under watch; every failure becomes a case.

    The program prints, returns and exits as it does without torchsleuth; status 3 means that it succeeded and
    a case was recorded.

    \b
    torchsleuth run train.py --epochs 1
    torchsleuth run -m mypackage.train
    torchsleuth run --check-accuracy infer.py
    torchsleuth run -- torchrun --nproc-per-node 2 train.py
    """
    if not command and module is None:
        raise click.UsageError("say what to run: a script, or -m MODULE")
    line = resolve_command(module, command)
    if line is None:
        raise NoSuchProgram(command[0])
    _after_the_dead(cases_dir)
    try:
        spool = new_spool(cases_dir)
    except DiskFull as why:
        say(f"{why} The program runs unwatched.")
        spool = spool_path(cases_dir)
    settings = Settings(
        spool=str(spool),
        level=4 if check_accuracy or check_every else level,
        after=after,
        only=only,
        keep_going=keep_going,
        check_every=check_every or 0,
    )
    result = supervise(line, settings, timeout=timeout, stdout=STDERR if as_json else None, note=say)
    cases: list[tuple[CaseFolder, WatchedProcess]] = []
    # The program has ended, and whatever fails from here on, its status is what we end with.
    ends = time.monotonic() + budget
    try:
        if not result.only_record:
            look_for_device_fault(line, settings, timeout, time.monotonic() + budget * SHARE, say)
        whole = _cases(cases_dir, spool, result, cases)
        if not record_only and settings.level >= 2 and not result.only_record:
            cases = _finish(cases, ends, None if no_minify else workers)
            _report(cases)
        if whole:
            _clear(spool, keep=settings.level == 3)
    except (KeyboardInterrupt, AskedToEnd):
        say(f"stopped; what is no case yet stays in {spool}, and the next `torchsleuth run` makes one of it")
    except Exception as error:
        our_fault(error)
        say(f"the program's own status stands; what it left stays in {spool}")
    status = result.status or (EXIT_CASE if cases else 0)
    if as_json:
        documents = [{**folder.case.to_json(), "path": str(folder.path)} for folder, _ in cases]
        with contextlib.suppress(OSError):
            print_json({"status": status, "program_status": result.status, "cases": documents})
    return status


def _after_the_dead(cases_dir: Path) -> None:
    """What killed processes left: their records become cases, their temporary folders go. No reason not to run."""
    try:
        sweep_scratch()
        adopt_leftovers(cases_dir, say)
    except Exception as error:
        our_fault(error)


def _cases(
    cases_dir: Path, spool: Path, result: Supervised, cases: list[tuple[CaseFolder, WatchedProcess]]
) -> bool:
    """A case for every failure of the run; says what there was to see where there is none. Whether all were written."""
    from torchsleuth.repro.assemble import make_case

    processes = watched_processes(spool)
    found: dict[Path, tuple[CaseFolder, WatchedProcess]] = {}
    # What a process reports once it has been found hanging comes of its being ended.
    ended = {process.folder: failure["time"] for process, failure in result.lost}
    reported = [
        (process, failure)
        for process in processes
        for failure in process.failures()
        if failure["time"] < ended.get(process.folder, float("inf"))
    ]
    unwritten = 0
    for process, failure in [*reported, *result.lost]:
        try:
            folder = make_case(cases_dir, process, failure, os.environ)
        except (OSError, SleuthError) as why:
            unwritten += 1
            say(
                f"a failure could not be made a case ({why}); what is known stays in {spool}, and the next "
                "`torchsleuth run` makes a case of it"
            )
            continue
        found[folder.path] = (folder, process)
    cases += found.values()
    graphs = sum(process.captured_graphs() for process in processes)
    troubled = [process for process in processes if "internal error" in process.log()]
    for process in troubled:
        say(
            f"something failed inside torchsleuth while it watched; the program was not affected:\n{process.log()}",
            lines=True,
        )
    if found:
        for folder, _ in found.values():
            _say_case(folder)
        if result.only_record:
            say(
                "the program was asked to end, so there is only what it recorded; go on with: torchsleuth minify"
            )
    elif unwritten:
        pass
    elif troubled:
        say("no case was recorded, and what failed inside torchsleuth may be why; please report it")
    elif graphs:
        several = "graph" if graphs == 1 else "graphs"
        say(f"watched {graphs} captured {several} being compiled and run, nothing failed")
    elif not processes and (reason := _cannot_record(spool)) is not None:
        say(f"nothing was recorded, as {spool} cannot be written ({reason}); the program ran unwatched")
    else:
        say(
            "nothing was compiled: no function or module of the program's own went through torch.compile. "
            "(torch compiles nothing for `.compile()` on a module of torch.nn itself, such as nn.Sequential: "
            "compile a function or module of yours that calls it)"
        )
    return not unwritten


def _cannot_record(spool: Path) -> str | None:
    """Why a watched process could not have left anything; None where it could."""
    try:
        (spool / "probe").mkdir()
        (spool / "probe").rmdir()
    except OSError as failure:
        return failure.strerror or str(failure)
    return None


def _say_case(folder: CaseFolder) -> None:
    case = folder.case
    rank = f" on rank {case.rank}" if case.rank is not None else ""
    again = f", seen {case.seen} times" if case.seen > 1 else ""
    what = case.signature.summary
    say(f"case {case.id}{rank}: {case.kind}: {what}{again}; next: torchsleuth show {_name(folder)}")


def _name(folder: CaseFolder) -> str:
    """What to type for this case: its id where the next command will look, its path elsewhere."""
    from torchsleuth.cli.options import DEFAULT_CASES

    default = Path(os.environ.get("TORCHSLEUTH_CASES") or DEFAULT_CASES).absolute()
    return folder.case.id if folder.path.parent.absolute() == default else os.path.relpath(folder.path)


def _finish(
    cases: list[tuple[CaseFolder, WatchedProcess]], deadline: float, workers: str | None
) -> list[tuple[CaseFolder, WatchedProcess]]:
    """Tries each case's script, finds who is at fault, makes it small and looks for a way around it.

    An interrupt leaves what was done so far.
    """
    from torchsleuth.cli.progress import StatusLine
    from torchsleuth.supervise.pipeline import investigate

    done = list(cases)
    for position, (folder, process) in enumerate(cases):
        line = StatusLine(max(1.0, deadline - time.monotonic()))
        try:
            for known in investigate(folder, process, deadline, workers, say, line.hear):
                line.end()
                done[position] = (known, process)
        except CaseInUse as why:
            say(str(why))
        except Exception as error:  # of this case; the others have their turn
            line.end()
            our_fault(error)
        except (KeyboardInterrupt, AskedToEnd):
            line.end()
            say(f"stopped; the case is kept, go on with: torchsleuth minify {_name(folder)}")
            break
    return done


def _report(cases: list[tuple[CaseFolder, WatchedProcess]]) -> None:
    """Writes page and issue text of each case, then the screen with which a run ends."""
    if not cases:
        return
    from torchsleuth.report.ending import show_ending
    from torchsleuth.report.writing import write_report

    for folder, _ in cases:
        try:
            write_report(folder)
        except SleuthError as why:
            say(str(why))
        except Exception as error:  # of this page; the others have their turn
            our_fault(error)
    show_ending([(folder, _name(folder)) for folder, _ in cases])


def _clear(spool: Path, keep: bool) -> None:
    """Removes the records of healthy graphs, or keeps them where that was asked for."""
    if keep:
        target = spool.parent.parent / "records" / spool.name
        try:
            target.parent.mkdir(exist_ok=True)
            spool.rename(target)
        except OSError as why:
            say(f"the records of all graphs stay in {spool} ({why})")
            return
        say(f"the records of all graphs are in {target}")
    else:
        shutil.rmtree(spool, ignore_errors=True)
    try:
        spool.parent.rmdir()
    except OSError:
        pass
