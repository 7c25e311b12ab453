"""`verify`: run a repro in fresh processes and compare how it fails with how the case failed."""

from __future__ import annotations

import ast
from pathlib import Path

import click

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import CaseFolder, open_case, update_case
from torchsleuth.core.cases.model import Verified
from torchsleuth.front.cli.agreement import agree_to, yes_option
from torchsleuth.front.cli.options import cases_option, json_option, seconds_option
from torchsleuth.front.cli.output import print_json, say, show
from torchsleuth.front.supervise.scripts import PHASE_SECONDS, ScriptRun, ScriptRunner
from torchsleuth.front.supervise.verification import fails_in_eager, passes_in_eager, phase_clock
from torchsleuth.script_runtime.signature import Signature, signature_from_json


class NoRepro(SleuthError):
    """The case has no script to run."""


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


def script_of(wanted: str, cases_dir: Path) -> tuple[CaseFolder | None, Path, Signature]:
    """The script to run, the failure it shows, and its case where it has one."""
    path = Path(wanted)
    if path.suffix == ".py" and path.is_file():
        folder = open_case(cases_dir, str(path.parent)) if (path.parent / "case.json").is_file() else None
        return folder, path, folder.case.signature if folder else expected_of_script(path)
    folder = open_case(cases_dir, wanted)
    for name in ("repro.py", "original.py"):
        if folder.has(name):
            return folder, folder.file(name), folder.case.signature
    raise NoRepro(
        f"case {folder.case.id} has no repro to run: {folder.case.no_repro or 'its script is missing'}"
    )


def expected_of_script(path: Path) -> Signature:
    """The failure a written script expects, read from its text without running it."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "EXPECTED":
                return signature_from_json(ast.literal_eval(node.value))
    except (OSError, SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise NoRepro(f"{path} cannot be read as a repro ({error})") from error
    raise NoRepro(f"{path} is not a script written by torchsleuth: it names no expected failure")
