"""`verify` and `replay`: run what a case keeps again, in fresh processes, and compare how it fails."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from torchsleuth.core.cases.folder import update_case
from torchsleuth.core.cases.model import Verified
from torchsleuth.core.criteria import Answer
from torchsleuth.front.cli.options import cases_option, json_option, seconds_option
from torchsleuth.front.cli.output import print_json, say, show
from torchsleuth.front.cli.wanted import (
    agree_to,
    case_to_execute,
    script_of,
    yes_option,
)
from torchsleuth.front.supervise.case_at_work import phase_clock
from torchsleuth.front.supervise.replay import Replay, replay_case
from torchsleuth.front.supervise.scripts import PHASE_SECONDS, ScriptRun, ScriptRunner
from torchsleuth.front.supervise.settle import fails_in_eager, passes_in_eager


@click.command("verify")
@click.argument("case_or_repro", default="last")
@click.option(
    "--times", type=click.IntRange(1), default=3, show_default=True, help="How many fresh processes."
)
@seconds_option("--timeout", "Seconds a compile or run may take before it is a hang.")
@yes_option
@cases_option
@json_option
def verify_verb(
    case_or_repro: str, times: int, timeout: float | None, yes: bool, cases_dir: Path, as_json: bool
) -> int:
    """Run a repro in fresh processes, each with a fresh kernel cache, and compare how it fails.

    Executes the script; a case that was not made here is asked about once (--yes). It is run once more without the
    compiler, where it has to pass. Status 0 where it failed the same way every time and passed without the compiler, 1
    otherwise; of a bug of the program's own nothing is asked without the compiler.

    \b
    torchsleuth verify last
    torchsleuth verify torchsleuth-cases/3f9a1c07/original.py --times 1
    """
    folder, script, expected = script_of(case_or_repro, cases_dir)
    if folder is not None:
        agree_to(folder, yes)
    clock = timeout or (PHASE_SECONDS if folder is None else phase_clock(folder.case))
    runs: list[ScriptRun] = []
    for number in range(1, times + 1):
        say(f"run {number} of {times}: {script.name} …")
        runs.append(ScriptRunner().run(script, expected, phase_seconds=clock))
        say(f"  {_words(runs[-1])}")
    reproduced = sum(run.reproduced for run in runs)
    say(f"once more without the compiler (TORCH_COMPILE_DISABLE=1): {script.name} …")
    eager = ScriptRunner().run(script, expected, phase_seconds=clock, compiles=False)
    say(f"  {_words(eager)}")
    passes = passes_in_eager(eager)
    triage = folder.case.triage if folder is not None else None
    slipped = passes is False and (triage is None or triage.component != "program")
    why = fails_in_eager(eager) if slipped else None
    holds = reproduced == times and not slipped
    verified = Verified(times, reproduced, holds, why, passes)
    if folder is not None:
        folder = update_case(folder, verified=verified)
    if as_json:
        print_json(
            {
                "times": times,
                "reproduced": reproduced,
                "same_signature": holds,
                "eager_passes": passes,
                "runs": [
                    {
                        "answer": r.words.replace(" ", "_"),
                        "summary": r.summary,
                        "seconds": round(r.seconds, 2),
                    }
                    for r in runs
                ],
            }
        )
    else:
        show(f"{script.name} failed the same way in {reproduced} of {times} fresh processes")
        show(why or {True: "it passes without the compiler", None: eager.summary, False: ""}[passes])
    return 0 if holds else 1


def _words(run: ScriptRun) -> str:
    return f"{run.words}: {run.summary} ({run.seconds:.1f} s)"


_WORDS = {
    Answer.FAILS: "the same failure",
    Answer.OTHER: "a different failure",
    Answer.PASSES: "nothing failed",
}


@click.command("replay")
@click.argument("case", default="last")
@click.option("--eager", is_flag=True, help="Compile nothing: does the frame run without the compiler?")
@click.option(
    "--pdb", "debugger", is_flag=True, help="Python's debugger where it fails; with --eager, at the call."
)
@seconds_option("--timeout", "Seconds after which it counts as a hang.")
@yes_option
@cases_option
@json_option
def replay_verb(
    case: str,
    eager: bool,
    debugger: bool,
    timeout: float | None,
    yes: bool,
    cases_dir: Path,
    as_json: bool,
) -> int:
    """Run one recorded frame again, in a fresh process: the function with its arguments, nothing of the program.

    Executes the recorded code; a case that was not made here is asked about once (--yes). What the frame prints, and
    its traceback, are shown as they come. Status 0 where it fails as the case says (with --eager: where nothing
    fails), 1 otherwise, 2 where the case holds no frame.

    \b
    torchsleuth replay last
    torchsleuth replay 3f9a1c07 --pdb
    """
    folder = case_to_execute(cases_dir, case, yes)
    output = sys.stderr.buffer if as_json else None
    found = replay_case(folder, eager=eager, debugger=debugger, timeout=timeout, output=output)
    if as_json:
        print_json({"answer": found.answer.value, "summary": found.summary, "seconds": found.seconds})
    else:
        show(_sentence(found, eager))
    return 0 if found.answer is (Answer.PASSES if eager else Answer.FAILS) else 1


def _sentence(found: Replay, eager: bool) -> str:
    how = " without the compiler" if eager else ""
    what = f": {found.summary}" if found.seen is not None else ""
    return f"{_WORDS[found.answer]}{how} after {found.seconds:.1f} s{what}"
