"""Cases of processes that died without a supervisor: a program that used `torchsleuth.watch` and crashed.

Its flight record is still in the spool. Whoever looks at the cases next makes a case of it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from torchsleuth.cases.crash import fatal_signal
from torchsleuth.cases.folder import CaseFolder
from torchsleuth.cases.spool import crash_failure, watched_processes
from torchsleuth.processes.tree import is_alive

SPOOL = ".spool"


def adopt_leftovers(cases_dir: Path) -> list[CaseFolder]:
    """Makes cases of what dead, unsupervised processes left, and clears it away."""
    from torchsleuth.repro.assemble import make_case

    adopted = []
    for spool in (cases_dir / SPOOL).glob("*"):
        owner = spool / "supervisor"
        if owner.exists() and is_alive(int(owner.read_text() or 0)):
            continue
        processes = watched_processes(spool)
        if any(is_alive(process.pid) for process in processes):
            continue
        for process in processes:
            failures = process.failures()
            where = None if process.finished else process.under_way()
            if where is not None and not failures:
                stacks = process.stacks()
                failures = [crash_failure(where, fatal_signal(stacks) or "SIGKILL", stacks)]
            adopted += [make_case(cases_dir, process, failure, os.environ) for failure in failures]
        shutil.rmtree(spool, ignore_errors=True)
    return adopted
