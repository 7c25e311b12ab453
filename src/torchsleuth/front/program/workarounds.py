"""A workaround on the user's whole program: it passes if the program then ends as a healthy run would.

That is: status 0, and under watch no failure at all; where the failure was wrong numbers, every graph is compared with
eager while the program runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from torchsleuth.core.cases.folder import CaseFolder
from torchsleuth.core.cases.model import Case
from torchsleuth.core.criteria import why_not_cured
from torchsleuth.core.processes.limits import hang_seconds
from torchsleuth.front.program.attempt import Attempt
from torchsleuth.front.program.runs import program_of, watch_program


def on_program(
    folder: CaseFolder,
    found: Sequence[Attempt],
    *,
    deadline: float,
    everything: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> list[Attempt]:
    """Runs the program with each verified workaround, best first, until one passes (`everything`: with each of them).

    What came of it is in `on_program(folder, attempts, deadline=time.monotonic() + 300)[0].workaround.program`.
    """
    program = program_of(folder)
    options = watch_options(folder.case)
    done: list[Attempt] = []
    passed = False
    for attempt in found:
        left = deadline - time.monotonic()
        tried = attempt.workaround
        if not tried.verified or attempt.change is None or (passed and not everything) or left <= 0:
            done.append(attempt)
            continue
        say(f"running the program with: {tried.name}")
        run = watch_program(program, attempt.change, options=options, timeout=left)
        why = why_not_cured(folder.case.signature, run)
        say(f"{tried.name}: {why or 'the program passes'} ({run.seconds:.0f} s)")
        passed = passed or why is None
        tried = replace(tried, program=why is None, error=tried.error if why is None else why)
        done.append(replace(attempt, workaround=tried))
    return done


def watch_options(case: Case) -> list[str]:
    """How the program has to be watched for this kind of failure to be seen.

    >>> watch_options(replace(case, kind="hang", extra={"timeout": 20}))
    ['--timeout', '20']
    """
    if case.kind == "accuracy":
        return ["--check-accuracy"]
    if case.kind == "hang":
        return ["--timeout", f"{hang_seconds(case.extra.get('timeout')):g}"]
    return []
