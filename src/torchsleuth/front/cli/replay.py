"""`replay`: one recorded frame run again in a fresh process, to the same error."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from torchsleuth.core.criteria import Answer
from torchsleuth.front.cli.agreement import case_to_execute, yes_option
from torchsleuth.front.cli.options import cases_option, json_option, seconds_option
from torchsleuth.front.cli.output import print_json, show
from torchsleuth.front.supervise.replay import Replay, replay_case

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
    said = f": {found.summary}" if found.seen is not None else ""
    return f"{_WORDS[found.answer]}{how} after {found.seconds:.1f} s{said}"
