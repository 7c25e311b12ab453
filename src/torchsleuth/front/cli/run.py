"""`run`: the program under watch, then a case for every failure, each with a script that was tried."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchsleuth.core.cases.errors import DiskFull, SleuthError
from torchsleuth.core.cases.folder import CaseFolder
from torchsleuth.core.cases.spool import watched_processes
from torchsleuth.core.change_table import RANDOM
from torchsleuth.core.processes.starting import sanitizing
from torchsleuth.core.protocol.codec import to_json
from torchsleuth.core.protocol.failures import CALLS_NOT_COMPARED, Remark
from torchsleuth.core.watching import COLLECTORS, OBSERVE_VARIABLE, Settings
from torchsleuth.front.cli.observed import (
    explained,
    same_random_option,
    say_given_up,
    say_nothing_compiled,
    say_remarks,
    why_not_recorded,
)
from torchsleuth.front.cli.options import (
    STDERR,
    ProgramCommand,
    budget_option,
    cases_option,
    json_option,
    log_environment,
    log_option,
    module_option,
    program_line,
    seconds_option,
    workers_option,
)
from torchsleuth.front.cli.output import AskedToEnd, our_fault, print_json, say
from torchsleuth.front.observe.events import counted
from torchsleuth.front.supervise.leftovers import adopt_leftovers, new_spool, spool_path, sweep_scratch
from torchsleuth.front.supervise.program import Supervised, supervise
from torchsleuth.front.supervise.program_runs import (
    SHARE,
    Caught,
    Program,
    ProgramRun,
    cases_of_run,
    record_device_fault,
)

if TYPE_CHECKING:
    from torchsleuth.front.supervise.whole_program import OnlyCompiled

EXIT_CASE = 3


@click.command("run", cls=ProgramCommand)
@module_option
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
@seconds_option(
    "--check-budget",
    "Seconds that comparing with eager may take in a process; by default 10, as long again as its own first calls "
    "took (compiling included), and 5 % of what follows. The first look at each graph is always made.",
    least=0,
    envvar="TORCHSLEUTH_CHECK_BUDGET",
)
@click.option(
    "--record-only", is_flag=True, envvar="TORCHSLEUTH_RECORD_ONLY", help="Stop once cases are written."
)
@seconds_option(
    "--timeout",
    "A compile or compiled call that takes longer is a hang: it becomes a case and the program is ended.",
    envvar="TORCHSLEUTH_TIMEOUT",
)
@budget_option(
    600, "Seconds for everything after the program has ended.", least=0, envvar="TORCHSLEUTH_BUDGET"
)
@workers_option
@click.option(
    "--no-minify", is_flag=True, envvar="TORCHSLEUTH_NO_MINIFY", help="Stop once original.py was tried."
)
@click.option(
    "--explain",
    is_flag=True,
    envvar="TORCHSLEUTH_EXPLAIN",
    help="Also collect graph breaks, recompilations and the rest of `explain`, in the same run.",
)
@log_option
@same_random_option
@click.option(
    "--sanitize",
    is_flag=True,
    envvar="TORCHSLEUTH_SANITIZE",
    help="On the CPU: build the C++ of graphs with sanitizers; an access out of range is a case, also one that does "
    "no visible harm.",
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
    check_budget: float | None,
    record_only: bool,
    timeout: float | None,
    budget: float,
    workers: str,
    no_minify: bool,
    explain: bool,
    log_levels: dict[str, str],
    same_random: bool,
    sanitize: bool,
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
    line = program_line(module, command, cases_dir)
    given = sanitizing() if sanitize else {}
    if given is None:
        raise click.UsageError("--sanitize needs a g++ with libasan: install it, or run without.")
    os.environ.update(given)  # for the program, and all that is started for its cases
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
        check_budget=check_budget,
    )
    collectors = (*(COLLECTORS if explain else ()), *(("logs",) if log_levels else ()))
    environment = {**os.environ, OBSERVE_VARIABLE: ",".join(collectors)}
    environment |= log_environment(log_levels, os.environ)
    if same_random:
        environment |= RANDOM.to_environment()
    started = time.monotonic()
    stdout = STDERR if as_json else None
    result = supervise(line, settings, environment, note=say, timeout=timeout, stdout=stdout)
    seconds = time.monotonic() - started
    run = explained(line[1:], spool, cases_dir, result, seconds) if explain else None
    cases: list[Caught] = []
    remarks: list[Remark] = []
    # The program has ended, and whatever fails from here on, its status is what we end with.
    ended = time.monotonic()
    ends = ended + budget
    goes_on = not record_only and settings.level >= 2 and not result.only_record
    only_compiled = None
    program = Program(tuple(line), os.getcwd())
    try:
        remarks += [remark for process in watched_processes(spool) for remark in process.remarks()]
        if not result.only_record:
            record_device_fault(program, settings, timeout, time.monotonic() + budget * SHARE, say)
        if goes_on and result.status and not result.interrupted:
            from torchsleuth.front.supervise.whole_program import look_at_own_error

            first = ProgramRun(result.status, seconds)
            only_compiled = look_at_own_error(
                program, settings, first, time.monotonic() + budget * SHARE, say
            )
        if settings.checks_accuracy:
            cases += _calls_compared(program, settings, result, cases_dir, remarks)
        whole = _cases(cases_dir, spool, result, cases, run, quiet=goes_on)
        say_remarks(remarks)
        if goes_on:
            cases = _finish(cases, ended, ends, None if no_minify else workers)
            if only_compiled is not None:
                cases += _whole_program(only_compiled, cases_dir, ends, None if no_minify else workers)
            _report(cases)
        if whole:
            _clear(spool, keep=settings.level == 3)
    except (KeyboardInterrupt, AskedToEnd):
        say(
            f"stopped; what is not a case yet stays in {spool}, and the next `torchsleuth run` turns it into one"
        )
    except Exception as error:
        our_fault(error)
        say(f"the program's own status stands; what it left stays in {spool}")
    status = result.status or (EXIT_CASE if cases else 0)
    if as_json:
        documents = [folder.document() for folder, _ in cases]
        with contextlib.suppress(OSError):
            document = {"status": status, "program_status": result.status, "cases": documents}
            if settings.checks_accuracy:
                document["accuracy"] = to_json(remarks)
            print_json(document if run is None else {**document, "run": run})
    return status


def _calls_compared(
    program: Program, settings: Settings, result: Supervised, cases_dir: Path, remarks: list[Remark]
) -> list[Caught]:
    """Cases of whole calls that could not be compared while the program ran; what is still not is a remark."""
    if result.only_record or result.interrupted:
        return []
    from torchsleuth.front.supervise.whole_program import compare_calls

    found = compare_calls(program, settings, cases_dir, say)
    if found is None:
        return []
    remarks[:] = [each for each in remarks if each.kind != CALLS_NOT_COMPARED]
    remarks += [Remark(0, "call", None, CALLS_NOT_COMPARED, found.left_out)] if found.left_out else []
    return found.cases


def _after_the_dead(cases_dir: Path) -> None:
    """What killed processes left: their records become cases, their temporary folders go. No reason not to run."""
    try:
        sweep_scratch()
        adopt_leftovers(cases_dir, say)
    except Exception as error:
        our_fault(error)


def _cases(
    cases_dir: Path,
    spool: Path,
    result: Supervised,
    cases: list[Caught],
    run: str | None,
    *,
    quiet: bool,
) -> bool:
    """A case for every failure of the run; says what there was to see where there is none. Whether all were written."""
    processes = watched_processes(spool)
    found, unwritten = cases_of_run(cases_dir, spool, result, run)
    cases += found
    found = list(cases)
    for why in unwritten:
        say(
            f"a failure could not be made a case ({why}); what is known stays in {spool}, and the next "
            "`torchsleuth run` turns it into one"
        )
    graphs = sum(process.captured_graphs() for process in processes)
    given_up = [function for process in processes for function in process.given_up()]
    full = next(filter(None, (process.unwritten() for process in processes)), None)
    if full is None and not processes:
        full = why_not_recorded(spool)
    if full is not None:
        say(
            f"{'not all' if processes else 'nothing'} was recorded, as {spool} cannot be written ({full}); "
            f"{'a failure may be missing' if processes else 'the program ran unwatched'}"
        )
    troubled = [process for process in processes if "internal error" in process.log()]
    for process in troubled:
        say(
            f"something failed inside torchsleuth while it watched; the program was not affected:\n{process.log()}",
            lines=True,
        )
    if found:
        for folder, _ in found[1:] if quiet else found:  # the first has its look at once
            _say_case(folder)
        if result.only_record:
            say(
                "the program was asked to end, so there is only what it recorded; go on with: torchsleuth minify"
            )
    elif unwritten or full is not None:
        pass
    elif troubled:
        say("no case was recorded, and what failed inside torchsleuth may be why; please report it")
    elif graphs:
        # `--explain` has counted them, without those that hold no operation.
        several = "" if run else f"watched {counted(graphs, 'captured graph')} being compiled and run, "
        say(f"{several}nothing failed")
    elif given_up:
        pass
    else:
        say_nothing_compiled()
    if not found or any(each.left for each in given_up):
        say_given_up(given_up, graphs)
    return not unwritten


def _say_case(folder: CaseFolder) -> None:
    case = folder.case
    again = f", seen {case.seen} times" if case.seen > 1 else ""
    what = case.signature.summary
    say(f"case {case.id}{case.on_ranks}: {case.kind}: {what}{again}; next: torchsleuth show {_name(folder)}")


def _name(folder: CaseFolder) -> str:
    """What to type for this case: its id where the next command will look, its path elsewhere."""
    from torchsleuth.front.cli.options import DEFAULT_CASES

    default = Path(os.environ.get("TORCHSLEUTH_CASES") or DEFAULT_CASES).absolute()
    return folder.case.id if folder.path.parent.absolute() == default else os.path.relpath(folder.path)


def _finish(cases: list[Caught], ended: float, deadline: float, workers: str | None) -> list[Caught]:
    """Shows what is known of each case at once; then tries its script, finds who is at fault, makes it small and looks
    for a way around it, with the first look kept up to date.

    An interrupt leaves what was done so far.
    """
    from torchsleuth.front.cli.output import StatusLine
    from torchsleuth.front.report.terminal import first_look
    from torchsleuth.front.supervise.program_blame import KnownRuns
    from torchsleuth.front.supervise.program_cures import one_cause
    from torchsleuth.front.supervise.road import investigate

    done, runs = list(cases), KnownRuns()
    for position, (folder, process) in enumerate(cases):
        line = StatusLine(max(1.0, deadline - time.monotonic()))

        def look(known: CaseFolder) -> list[str]:
            seconds, columns = time.monotonic() - ended, shutil.get_terminal_size((100, 24)).columns
            return first_look(known, _name(known), seconds, searching=workers is not None, width=columns)

        try:
            line.hold(look(folder))
            if (first := one_cause(folder, [known for known, _ in done[:position]])) is not None:
                done[position] = (first, process)
                line.end(leave=False)
                other = first.case.extra["same_cause"]
                say(
                    f"case {first.case.id}: the program passes with what helps case {other}, of the same function: "
                    f"one cause; to look at it by itself: torchsleuth minify {_name(first)}"
                )
                continue
            for known in investigate(folder, process, deadline, workers, line.say, line.update, runs):
                done[position] = (known, process)
                line.hold(look(known))
            line.end(leave=False)
        except SleuthError as why:
            line.end()
            say(str(why))
        except Exception as error:  # of this case; the others have their turn
            line.end()
            our_fault(error)
        except (KeyboardInterrupt, AskedToEnd):
            line.end()
            say(f"stopped; the case is kept, go on with: torchsleuth minify {_name(folder)}")
            break
    return done


def _whole_program(
    found: OnlyCompiled, cases_dir: Path, deadline: float, workers: str | None
) -> list[Caught]:
    """The case of a program that fails only when it is compiled, though nothing of it does; an interrupt keeps it."""
    from torchsleuth.front.cli.output import StatusLine
    from torchsleuth.front.supervise.whole_program import investigate_own_error

    case: list[Caught] = []
    line = StatusLine(max(1.0, deadline - time.monotonic()))
    try:
        for folder in investigate_own_error(found, cases_dir, workers, deadline, line.say, line.update):
            line.end()
            case = [(folder, found.process)]
    except (KeyboardInterrupt, AskedToEnd):
        line.end()
        say("stopped; what is known of the program is kept")
    return case


def _report(cases: list[Caught]) -> None:
    """Writes page and issue text of each case, then the screen with which a run ends."""
    if not cases:
        return
    from torchsleuth.front.report.html import write_report
    from torchsleuth.front.report.terminal import show_ending

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
