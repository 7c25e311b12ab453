"""What a person means by CASE, SCRIPT or PROGRAM, and whether it may be executed.

A script that torchsleuth or somebody else wrote may belong to a case, or become one. Before a verb executes what a case
holds, a case that was not made here is asked about, once.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path

import click

from torchsleuth.core.cases.door import changed_since, mark_as_ours
from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import CaseFolder, open_case
from torchsleuth.core.change_table import OWN_CACHE
from torchsleuth.core.processes.limits import NO_TIMEOUT
from torchsleuth.front.cli.options import Function
from torchsleuth.front.cli.output import say
from torchsleuth.front.supervise.program_runs import Program, Watch, run_program
from torchsleuth.script_runtime.signature import Signature, signature_from_json


class NotAgreed(SleuthError):
    """Nobody said that this may be done."""


class NotACase(SleuthError):
    """A script that does not fail here."""


class NoRepro(SleuthError):
    """The case has no script to run."""


yes_option: Callable[[Function], Function] = click.option(
    "--yes", is_flag=True, help="Execute a case that was not made here without asking."
)


def case_to_execute(cases_dir: Path, wanted: str, yes: bool) -> CaseFolder:
    """The case of that name, once it may be executed: `case_to_execute(cases_dir, "last", yes=False)`."""
    folder = open_case(cases_dir, wanted)
    agree_to(folder, yes)
    return folder


def agree_to(folder: CaseFolder, yes: bool) -> None:
    """Goes on where the case was made here and is as it was, or somebody says that its code may run.

    Says `NotAgreed` elsewhere.
    """
    changed = changed_since(folder.path, folder.case.id)
    if changed == ():
        return
    what = (
        "was not made here" if changed is None else f"was changed after it was written ({', '.join(changed)})"
    )
    about = f"case {folder.case.id} {what}, and this executes code that is in it"
    if not yes and not sys.stdin.isatty():
        raise NotAgreed(f"{about}: read it first ({folder.path}), then say --yes; nothing was executed.")
    say(f"{about} (graph.py, record.json, program.py, original.py, repro.py in {folder.path})")
    if not yes and not click.confirm("torchsleuth: go on?", err=True):
        raise NotAgreed("nothing was executed.")
    mark_as_ours(folder.path, folder.case.id)


def known_case(wanted: str, cases_dir: Path) -> CaseFolder | None:
    """The case that is meant; None for a script that has yet to become one."""
    path = Path(wanted)
    if path.suffix != ".py" or not path.is_file():
        return open_case(cases_dir, wanted)
    if (path.parent / "case.json").is_file():
        return open_case(cases_dir, str(path.parent))
    text = path.read_text(encoding="utf-8", errors="replace")
    kind = re.search(r"(?m)^EXPECTED = \{'kind': '(\w+)'", text)
    return None if kind is None or re.search(r"(?m)^FACTS = ", text) else _recorded(path, kind[1], cases_dir)


def _recorded(script: Path, kind: str, cases_dir: Path) -> CaseFolder:
    """A short repro is a program like any other: run under watch, it leaves its case."""
    watch = Watch(NO_TIMEOUT if kind == "hang" else None, compares=kind == "accuracy")
    say(f"running {script.name} under watch, to have its graph")
    program = Program((sys.executable, str(script)))
    cases = run_program(program, OWN_CACHE, watch=watch, cases_dir=cases_dir).cases
    if not cases:
        raise NotACase(
            f"{script} was run under watch and nothing failed here, so there is nothing to make smaller; "
            f"try `torchsleuth verify {script}`"
        )
    return open_case(cases_dir, cases[-1]["path"])


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
                expected = ast.literal_eval(node.value)
                # A script of a graph at hand counts any failure, and says so itself.
                return (
                    Signature("runtime_error", "run") if expected is None else signature_from_json(expected)
                )
    except (OSError, SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise NoRepro(f"{path} cannot be read as a repro ({error})") from error
    raise NoRepro(f"{path} is not a script written by torchsleuth: it names no expected failure")
