"""Runs a written script in a fresh process with a fresh kernel cache, and says what came of it.

A script that could not be set up has told nothing about the bug. Crashes and hangs are answers like any other; a hang
is a phase that outlasts its clock; the clock starts when the phase does, and stands while the script waits for a core.
A fresh process is `python script`, or a
fork of an interpreter that had loaded torch and compiled nothing, where that comes to the same. Where the fork sees no
accelerator and the script alone would, the first script is run both ways, and one run of several is the script alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchsleuth.core.criteria import SAME, Answer
from torchsleuth.core.processes.child import Child, Process, scratch
from torchsleuth.core.processes.kernel_caches import hand_probes_to, keep_probes_of
from torchsleuth.core.processes.limits import Stopwatch
from torchsleuth.core.processes.prepared import NotThere, PreparedInterpreter
from torchsleuth.core.processes.starting import fresh_environment
from torchsleuth.core.protocol.failures import signature_of_crash, signature_of_text
from torchsleuth.script_runtime.signature import Signature

# Importing torch on a loaded machine with a cold disk, and building the inputs.
SETUP_SECONDS = 180.0
PHASE_SECONDS = 600.0
# What is to hang while it runs has to be compiled first, and that takes its time.
COMPILE_FIRST, LEAST_COMPILE = 3.0, 60.0
POLL_SECONDS = 0.02

_STATUS = {1: Answer.FAILS, 0: Answer.PASSES, 2: Answer.OTHER, 3: Answer.CANNOT_TELL}
_WORDS = {
    Answer.FAILS: "reproduced",
    Answer.PASSES: "not reproduced",
    Answer.OTHER: "different",
    Answer.CANNOT_TELL: "cannot tell",
}
_LAST_LINE = re.compile(
    r"(REPRODUCED|DIFFERENT FAILURE|CANNOT TELL): (.*)|(NOT REPRODUCED)|(EAGER \w+)(?:: (.*))?"
)


@dataclass(frozen=True)
class ScriptRun:
    """One run of a script: whether it failed as expected, what it said, and how long it took."""

    answer: Answer
    summary: str
    seconds: float
    # Of a death or a hang, which no last line tells of, and of another error than the one looked for.
    seen: Signature | None = None
    # The kernel, the block and the thread that a device, or a checker of its memory, named.
    kernel: str | None = None

    @property
    def reproduced(self) -> bool:
        return self.answer is Answer.FAILS

    @property
    def words(self) -> str:
        """The answer in the words of a script's last line: "reproduced", "not reproduced", ..."""
        return _WORDS[self.answer]


# In the folder of one run of a script: what it writes, and its kernels.
OUT, ERR, CACHE = "stdout", "stderr", "cache"


@dataclass
class ScriptRunner:
    """Runs scripts, in forks of `prepared` where there is one that can: `ScriptRunner().run(script, expected)`.

    `stopped` ends the runs that are under way; they and all later ones then answer that they were stopped.
    """

    prepared: PreparedInterpreter | None = None
    python: str = sys.executable
    # What `python script` gets beside our own environment.
    environment: Mapping[str, str] = field(default_factory=dict)
    stopped: threading.Event = field(default_factory=threading.Event)
    # Whether a fork that devices are hidden from has answered as the script alone did; None before the first script.
    same_without_devices: bool | None = None
    # The longest that `python script` took until it answered: to load torch from a cold disk may take a minute.
    longest_alone: float = 0.0
    # The longest of all that answered: on a busy machine each takes a while.
    longest: float = 0.0

    @property
    def may_fork(self) -> bool:
        """Whether there is an interpreter to fork."""
        return (
            self.prepared is not None
            and not self.prepared.closed
            and os.path.samefile(self.python, sys.executable)
        )

    @property
    def hides_devices(self) -> bool:
        return self.prepared is not None and self.prepared.hides_devices

    @property
    def forks(self) -> bool:
        """Whether a fork is known to come to the same as `python script`."""
        return self.may_fork and (not self.hides_devices or self.same_without_devices is True)

    def run(
        self,
        script: Path,
        expected: Signature,
        *,
        arguments: Sequence[str] = (),
        phase_seconds: float = PHASE_SECONDS,
        deadline: float | None = None,
        compiles: bool = True,
        alone: bool = False,
        under: Sequence[str] = (),
    ) -> ScriptRun:
        """Runs `script` once and compares what happened with `expected`.

        `phase_seconds` is what compiling or running may take; `deadline` (of time.monotonic) bounds the whole. With
        `compiles` false it runs under TORCH_COMPILE_DISABLE=1, that is, without the compiler. With `alone` it is
        `python script` even where a fork would do, and with `under` that command is run by another.
        """
        environment = {} if compiles else {"TORCH_COMPILE_DISABLE": "1"}

        def fork(here: Path) -> Process:
            assert self.prepared is not None
            places = (here / OUT, here / ERR, here / CACHE)
            return self.prepared.fork_script(script, arguments, *places, environment)

        def start(here: Path) -> Process:
            given = {**fresh_environment(os.environ, here / CACHE), **self.environment, **environment}
            command = [*under, self.python, str(script), *arguments]
            return Child(command, environment=given, stdout=here / OUT, stderr=here / ERR)

        def one_run(begin: Callable[[Path], Process]) -> ScriptRun:
            run = watched_run(begin, expected, self.stopped, phase_seconds, deadline)
            if run.answer is not Answer.CANNOT_TELL:
                self.longest = max(self.longest, run.seconds)
                if begin is start:
                    self.longest_alone = max(self.longest_alone, run.seconds)
            return run

        alone = alone or bool(under)
        if self.forks and not alone:
            try:
                return one_run(fork)
            except NotThere:
                pass  # it is gone: a new interpreter for each from here on
        unknown = self.may_fork and self.hides_devices and self.same_without_devices is None
        if alone or not unknown:
            return one_run(start)
        with ThreadPoolExecutor(1) as beside, self.stopped_with_us():
            forked = beside.submit(one_run, fork)
            run = one_run(start)
            try:
                same = (forked.result().answer, forked.result().summary) == (run.answer, run.summary)
            except NotThere:
                same = False
        self.same_without_devices = same if run.answer is not Answer.CANNOT_TELL else None
        return run

    def run_times(
        self,
        script: Path,
        expected: Signature,
        times: int,
        *,
        at_once: int = 3,
        phase_seconds: float = PHASE_SECONDS,
        deadline: float | None = None,
    ) -> list[ScriptRun]:
        """Runs the script `times` times, several at once."""

        def once(number: int) -> ScriptRun:
            alone = self.hides_devices and 0 < number == times - 1
            return self.run(script, expected, phase_seconds=phase_seconds, deadline=deadline, alone=alone)

        with ThreadPoolExecutor(max(1, min(times, at_once))) as pool, self.stopped_with_us():
            return list(pool.map(once, range(times)))

    @contextlib.contextmanager
    def stopped_with_us(self) -> Iterator[None]:
        """Where whoever waits for runs is interrupted, they end and are not waited for."""
        try:
            yield
        except BaseException:
            self.stopped.set()
            raise


def watched_run(
    begin: Callable[[Path], Process],
    expected: Signature,
    stopped: threading.Event,
    phase_seconds: float,
    deadline: float | None,
) -> ScriptRun:
    """Begins a run in a new folder, follows its phases, and says what came of it."""
    started = time.monotonic()
    hangs_late = (expected.kind, expected.phase) == ("hang", "run")
    compiling = max(COMPILE_FIRST * phase_seconds, LEAST_COMPILE) if hangs_late else phase_seconds
    # The clock of each phase; None is that before the first.
    clocks = {None: SETUP_SECONDS, "compile": compiling, "run": phase_seconds}
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        here = Path(folder)
        for name in (OUT, ERR):
            (here / name).touch()
        hand_probes_to(here / CACHE)
        child = begin(here)
        try:
            how, phase = _await(child, here / ERR, clocks, deadline, stopped)
        finally:
            child.end()
        keep_probes_of(here / CACHE)
        seconds = time.monotonic() - started
        if how in _NOT_ENDED:
            return ScriptRun(Answer.CANNOT_TELL, _NOT_ENDED[how], seconds)
        code = child.poll() if how == "ended" else None
        run = _answer(code, phase, here, expected, seconds)
        return replace(run, kernel=next(filter(None, map(_kernel_named, (here / ERR, here / OUT))), None))


_NOT_ENDED = {"late": "the time for everything ran out before the script ended", "stopped": "it was stopped"}


def _await(
    child: Process,
    err: Path,
    clocks: Mapping[str | None, float],
    deadline: float | None,
    stopped: threading.Event,
) -> tuple[str, str | None]:
    """Waits for the child; how that ended (ended, hung, late, stopped), and the last phase it announced."""
    phase: str | None = None
    watch = Stopwatch(child.pid)
    seen = 0
    while child.poll() is None:
        time.sleep(POLL_SECONDS)
        seen, latest = _phases(err, seen)
        if latest is not None and latest != phase:
            phase, watch = latest, Stopwatch(child.pid)
        if watch.seconds > clocks[phase]:
            return "hung", phase
        if deadline is not None and time.monotonic() > deadline:
            return "late", phase
        if stopped.is_set():
            return "stopped", phase
    return "ended", _phases(err, seen)[1] or phase


def _phases(err: Path, seen: int) -> tuple[int, str | None]:
    """Reads what was written to stderr since `seen`: the new position and the last phase announced there."""
    with open(err, "rb") as file:
        file.seek(seen)
        text = file.read(1 << 20)
    found = re.findall(rb"^torchsleuth: (compiling|running)$", text, re.MULTILINE)
    # A mark may be cut in two by the end of what is there: step back over the last line.
    complete = text.rfind(b"\n") + 1
    names = {b"compiling": "compile", b"running": "run"}
    return seen + complete, names[found[-1]] if found else None


def _answer(
    code: int | None, phase: str | None, here: Path, expected: Signature, seconds: float
) -> ScriptRun:
    match = _LAST_LINE.fullmatch(_tail(here / OUT)) if code is not None and code >= 0 else None
    if match is not None and match[4]:
        eager = Answer.OTHER if code else Answer.PASSES
        return ScriptRun(eager, match[5] or match[4], seconds)
    if match is not None:
        answer = _STATUS.get(code or 0, Answer.CANNOT_TELL)
        seen = _error_in(here / ERR, phase) if answer is Answer.OTHER else None
        return ScriptRun(answer, match[2] or match[3], seconds, seen)
    if code is None or code < 0 or expected.kind == "crash":
        if phase is not None:
            seen = Signature("hang", phase) if code is None else signature_of_crash(code, phase)
            return ScriptRun(SAME.answer(expected, seen), seen.summary, seconds, seen)
        if code is None or code < 0:
            how = "took too long to start" if code is None else f"died of signal {-code} before compiling"
            return ScriptRun(Answer.CANNOT_TELL, f"the script {how}", seconds)
    return ScriptRun(Answer.CANNOT_TELL, f"the script ended with status {code}: {_tail(here / ERR)}", seconds)


def _error_in(err: Path, phase: str | None) -> Signature | None:
    """The error whose traceback is the last thing that a script wrote."""
    text = err.read_bytes()[-500_000:].decode("utf-8", errors="replace").rstrip()
    if phase == "run":
        return signature_of_text(text, "runtime_error", "run")
    return signature_of_text(text, "compile_error", "compile")


def _tail(path: Path) -> str:
    """The last line with something in it."""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        lines = file.read().decode("utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


# What a device says of an assertion that failed, and compute-sanitizer of an access.
_ASSERTED = re.compile(
    r"^(.{1,400}):(\d{1,7}): \S+: block: \[([\d, ]+)\], thread: \[([\d, ]+)\] Assertion `(.{1,400}?)` failed",
    re.M,
)
_ACCESSED = re.compile(
    r"^=+ +(Invalid [^\n]{1,200})\n=+ +at ([^\n]{1,400}?)(?:\+0x\w+)?(?: in [^\n]*)?\n"
    r"=+ +by thread \(([\d,]+)\) in block \(([\d,]+)\)",
    re.M,
)


# What a sanitizer says of generated C++, whose frame stands below those of what it was compiled with.
_SANITIZED = re.compile(
    r"ERROR: (AddressSanitizer: [\w-]+)[^\n]*(?:\n(?!\n)[^\n]*){0,12}?\n +#\d+ 0x\w+ in (\w+) ([^\n]+\.cpp):(\d{1,7})"
)


def _kernel_named(stream: Path) -> str | None:
    """The first kernel of which a device, or a checker of memory, says that it went wrong."""
    text = stream.read_bytes()[-2_000_000:].decode("utf-8", errors="replace")
    if (found := _ACCESSED.search(text)) is not None:
        what, kernel, thread, block = found.groups()
        return f"kernel {kernel}, block [{block}], thread [{thread}]: {what}"
    if (found := _SANITIZED.search(text)) is not None:
        what, function, file, line = found.groups()
        return f"{what} in {function}{_line_of(Path(file), int(line))}"
    if (found := _ASSERTED.search(text)) is None:
        return None
    file, line, block, thread, what = found.groups()
    kernel = _function_at(Path(file), int(line)) or Path(file).name
    return f"kernel {kernel}, block [{block}], thread [{thread}]: {what}"


def _line_of(file: Path, line: int) -> str:
    """A line of generated C++, which is gone when its process is."""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
    return f", at `{lines[line - 1].strip()}`" if 0 < line <= len(lines) else ""


def _function_at(file: Path, line: int) -> str | None:
    """The function of a Python file that holds a line, if the file is still there."""
    if file.suffix != ".py" or not file.is_file():
        return None
    above = file.read_text(encoding="utf-8", errors="replace").splitlines()[:line]
    return next((m[1] for text in reversed(above) if (m := re.match(r"def (\w+)\(", text))), None)
