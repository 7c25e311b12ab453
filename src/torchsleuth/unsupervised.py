"""`TORCHSLEUTH=1 python train.py`: the watch and the collectors where the command line cannot change.

`torchsleuth.pth`, which is installed beside the package, looks for the variable when Python starts, and only where it
is set imports this module; once torch has been imported, the watch begins. Whoever does not ask for it never loads any
of it. A program may call `torchsleuth.start()` instead. Failures become
cases at once, as with `torchsleuth.watch`; what was collected is written when the process ends. Processes that it
starts inherit the watch and write into the same run.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchsleuth.watched.flight import Flight

SWITCH = "TORCHSLEUTH"
OFF = ("", "0", "false", "no", "off")


def start_with_torch() -> None:
    """Called when Python starts: where TORCHSLEUTH says so, the watch begins once torch is there. Never raises."""
    if os.environ.get(SWITCH, "").lower() in OFF:
        return

    def begin(_torch: object) -> None:
        try:
            start()
        except Exception as error:  # the user's program comes first
            sys.stderr.write(f"torchsleuth: not watching: {type(error).__name__}: {error}\n")

    from torchsleuth.torch_internals.module_names import TORCH
    from torchsleuth.watched.startup import after_import

    after_import(TORCH, begin)


def start(cases: str | os.PathLike[str] | None = None) -> None:
    """Watches this process and all that it starts, from now on, and collects graph breaks and recompilations.

    Used as `torchsleuth.start()` in the first lines of a program, before anything is compiled. Under `torchsleuth run`
    it does nothing.
    """
    from torchsleuth.core.watching import COLLECTORS, OBSERVE_VARIABLE, WATCH_VARIABLE, Settings
    from torchsleuth.watched import install

    if os.environ.get(WATCH_VARIABLE):
        install.watch_this_process()
        return
    folder = Path(cases or os.environ.get("TORCHSLEUTH_CASES") or "torchsleuth-cases").absolute()
    spool = folder / ".spool" / f"watch-{os.getpid()}"
    spool.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings = Settings(spool=str(spool))
    os.environ.update({**settings.to_environment(), OBSERVE_VARIABLE: ",".join(COLLECTORS)})
    atexit.register(_finish, os.getpid(), folder, spool, time.monotonic())
    install.watch_this_process(settings, finish=functools.partial(_make_cases, folder))


def _make_cases(folder: Path, flight: Flight) -> None:
    from torchsleuth.api import make_cases  # needs torch, which is there by the time something has failed

    make_cases(folder, flight)


def _finish(pid: int, folder: Path, spool: Path, started: float) -> None:
    """Writes what was collected, in the process that began, and clears the spool."""
    if os.getpid() != pid:
        return
    from torchsleuth.core.cases.folder import run_folder
    from torchsleuth.front.observe.events import read_events, was_cut
    from torchsleuth.front.report.pages import COLLECTED, headlines, write_run

    try:
        events = read_events(spool)
        if any(event.kind == "frame" for event in events):
            name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"
            target = run_folder(folder, name)
            facts = {
                "run": name,
                "path": str(target),
                "seconds": round(time.monotonic() - started, 3),
                "truncated": was_cut(events),
            }
            found = {name: kind.of(events) for name, kind in COLLECTED.items()}
            page = write_run(target, sys.argv[0], facts, found)
            for line in (*headlines(found), f"page: {page}"):
                sys.stderr.write(f"torchsleuth: {line}\n")
        else:
            sys.stderr.write("torchsleuth: nothing was compiled\n")
        shutil.rmtree(spool, ignore_errors=True)
        with contextlib.suppress(OSError):
            spool.parent.rmdir()
    except Exception as error:  # the program's own end is what counts
        why = f"{type(error).__name__}: {error}"
        sys.stderr.write(f"torchsleuth: what was collected stays in {spool}: {why}\n")
