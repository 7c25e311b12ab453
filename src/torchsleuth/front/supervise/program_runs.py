"""The user's program run again, unchanged, with something of the compiler different: bare, or under watch.

Nobody is to see such a run: it reads nothing, what it prints is looked at for how it ended, and it ends with us. It has
a kernel cache of its own, gone afterwards: torch keeps compiled graphs by graph and settings, so a run with an override
could answer from one without it, and leave its own kernels to the next. Only a run that is to show what lies in the
program's cache gets that one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import CaseFolder, update_case
from torchsleuth.core.cases.model import Case
from torchsleuth.core.cases.record import read_record
from torchsleuth.core.cases.spool import WatchedProcess, watched_processes
from torchsleuth.core.changes import NOTHING, Change, change_from_environment, with_lines
from torchsleuth.core.criteria import last_word_of
from torchsleuth.core.processes.child import scratch
from torchsleuth.core.processes.kernel_caches import hand_probes_to
from torchsleuth.core.processes.limits import hang_seconds
from torchsleuth.core.protocol.codec import Document
from torchsleuth.core.watching import OBSERVE_VARIABLE, Settings
from torchsleuth.front.supervise.leftovers import temporary_spool
from torchsleuth.front.supervise.program import Supervised, supervise
from torchsleuth.script_runtime.hiding import HIDDEN_SECRET
from torchsleuth.script_runtime.signature import Signature, signature_from_json

# Of what a program prints, what is kept to say how it ended.
TAIL_BYTES = 64 << 10
# The level at which results are compared with eager's.
COMPARING = 4
# Of the time that is left, the share for a second run of the program.
SHARE = 0.5

Say = Callable[[str], None]
Caught = tuple[CaseFolder, WatchedProcess]


class CannotRunProgram(SleuthError):
    """The program cannot be started again; says why and what to do."""


@dataclass(frozen=True)
class Program:
    """How to start the user's program: `Program(("python", "train.py"), "/home/me")`.

    `change` is made in every run of it: a program that fails under some settings (`sweep`) is asked under them.
    `environment` is what it gets beside ours.
    """

    command: tuple[str, ...]
    cwd: str | None = None
    change: Change = NOTHING
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def from_stdin(self) -> bool:
        """Whether Python read the program from its standard input.

        >>> Program(("python", "-")).from_stdin, Program(("python", "train.py", "-")).from_stdin
        (True, False)
        """
        words = [word for word in self.command[1:] if word == "-" or not word.startswith("-")]
        return not words[:1] or words[0] == "-"

    @property
    def script(self) -> Path | None:
        """Its file, where it is a script that this Python runs.

        >>> Program(("pytest", "test_a.py"), "/home/me").script is None
        True
        """
        place = self._place_of_script
        return None if place is None else (Path(self.cwd or ".") / self.command[place]).absolute()

    @property
    def arguments(self) -> tuple[str, ...]:
        """What its script is given.

        >>> Program((sys.executable, "-u", "-X", "dev", "train.py", "--epochs", "1")).arguments
        ('--epochs', '1')
        """
        place = self._place_of_script
        return () if place is None else self.command[place + 1 :]

    @property
    def _place_of_script(self) -> int | None:
        words, place = self.command, 1
        while place < len(words) and re.fullmatch(r"-[bBdEiIOPqsSuvx]+|-[XW].*", words[place]):
            place += 2 if words[place] in ("-X", "-W") else 1
        if place >= len(words) or not words[place].endswith(".py"):
            return None
        python, ours = Path(shutil.which(words[0]) or words[0]), Path(sys.executable)
        named = python.name.startswith("python") and python.parent == ours.parent
        return place if python == ours or named else None


@dataclass(frozen=True)
class Watch:
    """What a run is watched for: a compile or compiled call that takes longer than `timeout` is a hang; with `compares`
    results that differ from eager's are failures as well."""

    timeout: float | None = None
    compares: bool = False


@dataclass(frozen=True)
class ProgramRun:
    """How a run ended. `status` is 128+N where signal N ended it; `tail` is the end of what it wrote to stderr.

    `cases` are those that it left under watch, as `run --json` shows them.
    """

    status: int
    seconds: float
    timed_out: bool = False
    tail: str = ""
    cases: tuple[Document, ...] = ()

    @property
    def healthy(self) -> bool:
        return self.status == 0 and not self.timed_out

    @property
    def last_word(self) -> str:
        """The type of the error it ended with: `AssertionError`; empty where there is none.

        >>> ProgramRun(1, 0.1, tail="Traceback ...\\nValueError: no").last_word
        'ValueError'
        """
        return last_word_of(self.tail)

    @property
    def cannot_override(self) -> str:
        """Why the program was ended before it ran with what was asked for; empty where it was not.

        >>> ProgramRun(2, 0.1, tail="torchsleuth: cannot override: this torch has no such thing").cannot_override
        'this torch has no such thing'
        """
        _, found, why = self.tail.rpartition("torchsleuth: cannot override: ")
        return why.splitlines()[0] if found and self.status == 2 else ""

    @property
    def signatures(self) -> list[Signature]:
        """How the failures look that were recorded, where the run was watched."""
        return [signature_from_json(dict(case["signature"])) for case in self.cases]


def program_of(folder: CaseFolder) -> Program:
    """How the program of a case was started; raises `CannotRunProgram` where that is not known or not possible."""
    case = folder.case
    if case.rank is not None:
        raise CannotRunProgram(
            f"case {case.id} is from one rank of a distributed program, which cannot be started by itself; "
            "put the workaround into the program and run it with its launcher"
        )
    try:
        known = case.extra.get("program") or read_record(folder.file("record.json")).program
        command, cwd = [str(word) for word in known["command"]], known["cwd"]
    except (ValueError, KeyError, TypeError):
        raise CannotRunProgram(
            f"case {case.id} does not say how its program was started; record it again with: torchsleuth run"
        ) from None
    if any(HIDDEN_SECRET in word for word in command):
        raise CannotRunProgram(
            f"the command line of the program of case {case.id} held a secret, which is not kept; "
            "put the workaround into the program and run it yourself"
        )
    command, cwd = [os.path.expanduser(word) for word in command], os.path.expanduser(str(cwd or ""))
    if not command or not cwd or not Path(cwd).is_dir():
        raise CannotRunProgram(f"the folder in which the program of case {case.id} ran is not here: {cwd}")
    return Program(tuple(command), cwd)


def watch_for(case: Case) -> Watch:
    """How the program has to be watched for this kind of failure to be seen.

    >>> watch_for(replace(case, kind="hang", extra={"timeout": 20}))
    Watch(timeout=20.0, compares=False)
    """
    timeout = hang_seconds(case.extra.get("timeout")) if case.kind == "hang" else None
    return Watch(timeout, compares=case.kind == "accuracy")


# -- one run


def run_program(
    program: Program,
    change: Change,
    *,
    watch: Watch | None = None,
    timeout: float | None = None,
    cases_dir: Path | None = None,
    stopped: threading.Event | None = None,
) -> ProgramRun:
    """One run; without `watch` only its end is looked at, with it there are cases for its failures.

    Cases lie in a folder that is gone afterwards unless one is given. A run that is waited for in a thread is ended by
    `stopped`, as no Ctrl-C arrives there. Used as
    `run_program(Program(("python", "train.py")), Change(backend="sleuth_eager"), timeout=60).healthy`.
    """
    with recorded(program, change, watch, timeout, cases_dir, stopped) as found:
        return found.run


@dataclass(frozen=True)
class Recorded:
    """A run and what it left, as long as that is there: the settings name the folder of its records."""

    run: ProgramRun
    settings: Settings
    cases: list[Caught]


@contextlib.contextmanager
def recorded(
    program: Program,
    change: Change,
    watch: Watch | None,
    timeout: float | None = None,
    cases_dir: Path | None = None,
    stopped: threading.Event | None = None,
    *,
    observe: str = "",
) -> Iterator[Recorded]:
    """One run as `run_program` makes it, with what it left until the `with` block ends; `observe` names collectors."""
    started = time.monotonic()
    until = started + timeout if timeout is not None else float("inf")
    with contextlib.ExitStack() as stack:
        gone = stack.enter_context(tempfile.TemporaryDirectory(dir=scratch()))
        err = stack.enter_context(tempfile.TemporaryFile())
        environment = changed_environment(change.over(program.change), Path(gone))
        environment |= {OBSERVE_VARIABLE: observe, **program.environment}
        program = _edited(program, change, Path(gone))
        where = (cases_dir or Path(gone)).absolute()
        try:
            spool = stack.enter_context(temporary_spool(where))
        except SleuthError as error:
            raise CannotRunProgram(f"the program was not run: {error}") from error
        level = COMPARING if watch is not None and watch.compares else 2
        settings = Settings(str(spool), level=level, watches_failures=watch is not None)

        def enough() -> bool:
            return stopped is not None and stopped.is_set()

        ended = run_unseen(
            program,
            settings,
            until,
            timeout=None if watch is None else watch.timeout,
            enough=enough,
            environment=environment,
            stderr=err,
        )
        late = ended.late or enough()
        caught: list[Caught] = []
        if watch is not None and not late:
            record_device_fault(program, settings, watch.timeout, until, environment=environment)
            caught, _ = cases_of_run(where, spool, ended)
        documents = tuple(folder.document() for folder, _ in caught)
        seconds = round(time.monotonic() - started, 2)
        run = ProgramRun(ended.status, seconds, late, _tail(err), documents)
        yield Recorded(run, settings, caught)


def run_unseen(
    program: Program,
    settings: Settings,
    deadline: float,
    *,
    timeout: float | None = None,
    enough: Callable[[], bool] = lambda: False,
    environment: Mapping[str, str] | None = None,
    stderr: BinaryIO | int = subprocess.DEVNULL,
) -> Supervised:
    """A run that nobody is to see, under the one clock for all of them: it ends at the deadline, or once `enough`.

    `environment` is all that it gets where it is not to have ours. Raises `CannotRunProgram` where it does not start.
    """
    if environment is None:
        changed = program.change.over(change_from_environment())
        environment = {**os.environ, **changed.to_environment()}
    try:
        return supervise(
            program.command,
            settings,
            environment,
            note=nobody,
            timeout=timeout,
            until=deadline,
            unseen=True,
            enough=enough,
            cwd=program.cwd,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    except OSError as error:
        raise CannotRunProgram(f"the program cannot be started ({error})") from error


def nobody(_: object) -> None:
    """Listens to what is said or told, and does nothing: `run_unseen` is heard by it."""


# Runs a text as Python would run the script it is of.
_IN_PLACE_OF_FILE = (
    "import os, sys; file = sys.argv[1]; del sys.argv[:2]; __file__ = os.path.abspath(sys.argv[0]); "
    "sys.path[0] = os.path.dirname(__file__); exec(compile(open(file, encoding='utf-8').read(), __file__, 'exec'))"
)


def _edited(program: Program, change: Change, folder: Path) -> Program:
    """The program with other lines in its script, whose file is left as it is."""
    script = program.script
    lines = [each for each in change.edited if script is not None and Path(each[0]) == script]
    if script is None or not lines:
        return program
    text = script.read_text(encoding="utf-8")
    for _, first, last, after in sorted(lines, reverse=True):
        text = with_lines(text, first, last, after)
    changed = folder / script.name
    changed.write_text(text, encoding="utf-8")
    python, *rest = program.command
    return replace(program, command=(python, "-c", _IN_PLACE_OF_FILE, str(changed), *rest))


def changed_environment(change: Change, gone: Path) -> dict[str, str]:
    """The environment of a run with this change and a kernel cache of its own in the folder `gone`."""
    # What was asked of us by torch's own names must not start torch's tool of that name.
    ours = ("TORCHSLEUTH_", "TORCHDYNAMO_REPRO_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    if not change.own_cache:
        cache = gone / "kernels"
        cache.mkdir()
        hand_probes_to(cache)
        kept["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    return {**kept, **change.over(change_from_environment()).to_environment()}


def _tail(file: BinaryIO) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL_BYTES))
    return file.read().decode("utf-8", errors="replace")


# -- what a run left


def cases_of_run(
    cases_dir: Path, spool: Path, ended: Supervised, run_id: str | None = None
) -> tuple[list[Caught], list[str]]:
    """A case for every failure of a run, with the process that it was seen in; and why some could not be written.

    `run_id` is that of the run's own folder, where it has one.
    """
    from torchsleuth.torch_core.repro.assemble import make_case

    # What a process reports once it has been found hanging comes of its being ended.
    hung = {process.folder: failure.time for process, failure in ended.lost}
    reported = [
        (process, failure)
        for process in watched_processes(spool)
        for failure in process.failures()
        if failure.time < hung.get(process.folder, float("inf"))
    ]
    found: dict[Path, Caught] = {}
    unwritten: list[str] = []
    for process, failure in [*reported, *ended.lost]:
        try:
            folder = make_case(cases_dir, process, failure, os.environ)
            if run_id is not None:
                folder = update_case(folder, extra={"run": run_id})
        except (OSError, SleuthError) as why:
            unwritten.append(str(why))
            continue
        found[folder.path] = (folder, process)
    return list(found.values()), unwritten


# -- the same run once more, its records beside those of the first


def record_again(
    program: Program,
    settings: Settings,
    deadline: float,
    *,
    timeout: float | None = None,
    until_failure: bool = False,
    environment: Mapping[str, str] | None = None,
) -> bool:
    """Whether any failure is reported when the program runs once more; with `until_failure` it is ended then."""
    spool = Path(settings.spool)
    known = {process.folder for process in watched_processes(spool)}

    def seen() -> bool:
        later = [process for process in watched_processes(spool) if process.folder not in known]
        return any(process.failures() for process in later)

    enough = seen if until_failure else lambda: False
    run_unseen(program, settings, deadline, timeout=timeout, enough=enough, environment=environment)
    return seen()


def record_device_fault(
    program: Program,
    settings: Settings,
    timeout: float | None,
    deadline: float,
    say: Say = nobody,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Where a device failed and no call of a graph was seen to fail: the program once more, each call waited for."""
    processes = watched_processes(Path(settings.spool))
    faults = [fault for process in processes if (fault := process.device_fault()) and not process.failures()]
    if not faults or program.from_stdin:
        return
    say(f"the device failed, and nobody was waiting for it: {faults[0]}")
    say("running the program once more, with a wait after each compiled call, to see which one it is")
    careful = replace(settings, synchronised=True)
    if not record_again(
        program, careful, deadline, timeout=timeout, until_failure=True, environment=environment
    ):
        say("it was no compiled call, or the failure did not come again")
