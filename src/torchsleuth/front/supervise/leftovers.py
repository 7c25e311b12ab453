"""Cases of processes that died without a supervisor: a program that used `torchsleuth.watch` and crashed.

Its flight record is still in the spool, and the next `torchsleuth run` in that folder makes a case of it. Only what
this user's processes left on this machine since it was started counts: whether others still run cannot be known here.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from torchsleuth.core.cases.door import NotRead, is_own_folder, json_inside
from torchsleuth.core.cases.errors import SleuthError, error_of_oserror
from torchsleuth.core.cases.folder import CaseFolder
from torchsleuth.core.cases.spool import crash_failure, watched_processes
from torchsleuth.core.processes.child import OWNER, PREFIX, UNNAMED
from torchsleuth.core.processes.tree import identity_from_json, this_process
from torchsleuth.core.protocol.codec import to_json
from torchsleuth.core.protocol.failures import fatal_signal
from torchsleuth.core.protocol.files import write_whole

SPOOL = ".spool"
UNSUPERVISED = "watch-"
_NAME = re.compile(rf"\d{{8}}-\d{{6}}-[0-9a-f]{{6}}|{UNSUPERVISED}\d+")


def new_spool(cases_dir: Path) -> Path:
    """A folder for what the processes of one run leave, readable by this user alone, with the word whose it is."""
    spool = spool_path(cases_dir)
    above = spool.parent
    try:
        above.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_own_folder(above):
            raise SleuthError(
                f"{above} is not a folder of yours, so nothing can be recorded there; name --cases DIR."
            )
        spool.mkdir(mode=0o700)
        write_whole(spool / OWNER, json.dumps(to_json(this_process())))
    except OSError as error:
        raise error_of_oserror(cases_dir, error) from error
    return spool


@contextlib.contextmanager
def temporary_spool(cases_dir: Path) -> Iterator[Path]:
    """Such a folder that is gone after the block: `with temporary_spool(Path("cases")) as spool: ...`."""
    spool = new_spool(cases_dir)
    try:
        yield spool
    finally:
        shutil.rmtree(spool, ignore_errors=True)
        with contextlib.suppress(OSError):
            spool.parent.rmdir()


def spool_path(cases_dir: Path) -> Path:
    """Where the next run's records would lie: `spool_path(Path("cases"))`."""
    return cases_dir.absolute() / SPOOL / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"


# A folder says whose it is sooner than that, or whoever made it was killed.
UNNAMED_SECONDS = 60


def sweep_scratch() -> None:
    """Removes the temporary folders of torchsleuths of this user that were killed, with all that cleans up for them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            if is_own_folder(folder):
                owner = identity_from_json(json_inside(folder, OWNER))
                if owner.is_here and not owner.is_alive:
                    shutil.rmtree(folder, ignore_errors=True)  # does not follow links
        except ValueError:
            continue
    for folder in Path(tempfile.gettempdir()).glob(f"{UNNAMED}*"):
        with contextlib.suppress(OSError):
            if is_own_folder(folder) and time.time() - os.lstat(folder).st_mtime > UNNAMED_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def leftover_spools(cases_dir: Path) -> list[Path]:
    """What dead processes of this user left here, for which there is no case yet. Changes nothing."""
    above = cases_dir.absolute() / SPOOL
    if not is_own_folder(above):
        return []
    return [
        p for p in sorted(above.iterdir()) if _NAME.fullmatch(p.name) and is_own_folder(p) and _is_left(p)
    ]


def _is_left(spool: Path) -> bool:
    """Whether the owner and every process in it belong here and have ended."""
    try:
        owners = [process.identity for process in watched_processes(spool)]
        if not spool.name.startswith(UNSUPERVISED):
            owners.append(identity_from_json(json_inside(spool, OWNER)))
    except ValueError:
        return False
    return bool(owners) and all(owner.is_here and not owner.is_alive for owner in owners)


def adopt_leftovers(cases_dir: Path, say: Callable[[str], None]) -> list[CaseFolder]:
    """Makes cases of what dead, unsupervised processes left, and clears it away; what is malformed stays."""
    adopted: list[CaseFolder] = []
    for spool in leftover_spools(cases_dir):
        try:
            adopted += _adopted(cases_dir, spool)
        except (NotRead, SleuthError) as why:
            say(f"what a program left in {spool} is not made a case: {why}")
            continue
        shutil.rmtree(spool, ignore_errors=True)  # does not follow links
    for folder in adopted:
        say(f"case {folder.case.id} is from a program that died earlier: {folder.case.signature.summary}")
    return adopted


def _adopted(cases_dir: Path, spool: Path) -> list[CaseFolder]:
    from torchsleuth.torch_core.repro.assemble import make_case

    adopted = []
    for process in watched_processes(spool):
        # A program without a supervisor makes cases of its failures at once; only its death is news.
        failures = [] if spool.name.startswith(UNSUPERVISED) else process.failures()
        where = None if process.finished else process.under_way()
        if where is not None and not failures:
            stacks = process.stacks()
            failures = [crash_failure(where, fatal_signal(stacks) or "SIGKILL", stacks)]
        adopted += [make_case(cases_dir, process, failure, os.environ) for failure in failures]
    return adopted
