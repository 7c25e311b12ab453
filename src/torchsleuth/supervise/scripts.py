"""Runs a written script in a fresh process with a fresh kernel cache, and says what came of it.

Three answers, not two: a script that could not be set up has told nothing about the bug. Crashes and hangs are
answers like any other; a hang is a phase that outlasts its clock, and the clock starts when the phase does.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torchsleuth.cases.crash import signature_of_crash
from torchsleuth.processes.compiler_probes import hand_probes_to, keep_probes_of
from torchsleuth.processes.tree import kill_group
from torchsleuth.script_runtime.signature import Signature, fails_the_same_way

# Importing torch on a loaded machine with a cold disk, and building the inputs.
SETUP_SECONDS = 180.0
PHASE_SECONDS = 600.0
POLL_SECONDS = 0.02

_ANSWERS = {1: "reproduced", 0: "not_reproduced", 2: "different", 3: "cannot_tell"}
_LAST_LINE = re.compile(
    r"(REPRODUCED|DIFFERENT FAILURE|CANNOT TELL): (.*)|(NOT REPRODUCED)|(EAGER \w+)(?:: (.*))?"
)


@dataclass(frozen=True)
class ScriptRun:
    """One run of a script: `answer` is reproduced, not_reproduced, different or cannot_tell."""

    answer: str
    summary: str
    seconds: float

    @property
    def reproduced(self) -> bool:
        return self.answer == "reproduced"


class Running(Protocol):
    """A script under way: `poll` is its exit status once it has ended; `end` kills it with all it started."""

    def poll(self) -> int | None: ...

    def end(self) -> None: ...


@dataclass(frozen=True)
class Places:
    """Where one run of a script writes to: two files, and a folder for its kernels that is empty before it."""

    stdout: Path
    stderr: Path
    cache: Path


def run_script(
    script: Path,
    expected: Signature,
    *,
    arguments: Sequence[str] = (),
    python: str = sys.executable,
    phase_seconds: float = PHASE_SECONDS,
    deadline: float | None = None,
) -> ScriptRun:
    """Runs `script` once, by `python script`, and compares what happened with `expected`.

    `phase_seconds` is what compiling or running may take; `deadline` (of time.monotonic) bounds the whole.
    """

    def begin(places: Places) -> Running:
        return _Interpreter([python, str(script), *arguments], places)

    return watched_run(begin, expected, phase_seconds=phase_seconds, deadline=deadline)


def watched_run(
    begin: Callable[[Places], Running], expected: Signature, *, phase_seconds: float, deadline: float | None
) -> ScriptRun:
    """Begins a run in new places, follows its phases, and says what came of it."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torchsleuth-") as scratch:
        places = Places(Path(scratch, "stdout"), Path(scratch, "stderr"), Path(scratch, "cache"))
        places.stdout.touch()
        places.stderr.touch()
        hand_probes_to(places.cache)
        child = begin(places)
        try:
            how, phase = _await(child, places.stderr, phase_seconds, deadline)
        finally:
            child.end()
        keep_probes_of(places.cache)
        seconds = time.monotonic() - started
        if how == "late":
            return ScriptRun(
                "cannot_tell", "the time for everything ran out before the script ended", seconds
            )
        code = child.poll() if how == "ended" else None
        return _answer(code, phase, places.stdout, places.stderr, expected, seconds)


class _Interpreter:
    """`python script` in a session of its own."""

    def __init__(self, command: Sequence[str], places: Places) -> None:
        with open(places.stdout, "wb") as stdout, open(places.stderr, "wb") as stderr:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=fresh_environment(os.environ, places.cache),
                start_new_session=True,
            )

    def poll(self) -> int | None:
        return self._child.poll()

    def end(self) -> None:
        kill_group(self._child.pid)  # a session of its own cannot be anyone else's
        self._child.wait()


def fresh_environment(environment: Mapping[str, str], cache: Path) -> dict[str, str]:
    """The environment of a fresh process: not watched, and with a kernel cache of its own."""
    kept = {k: v for k, v in environment.items() if not k.startswith("TORCHSLEUTH_")}
    paths = [p for p in kept.get("PYTHONPATH", "").split(os.pathsep) if not p.endswith(_INJECT)]
    kept["PYTHONPATH"] = os.pathsep.join(paths)
    if not kept["PYTHONPATH"]:
        del kept["PYTHONPATH"]
    return {**kept, "TORCHINDUCTOR_CACHE_DIR": str(cache), "PYTHONUNBUFFERED": "1"}


_INJECT = os.path.join("torchsleuth", "watched", "inject")


def _await(child: Running, err: Path, phase_seconds: float, deadline: float | None) -> tuple[str, str | None]:
    """Waits for the child; how that ended (ended, hung, late), and the last phase it announced."""
    phase: str | None = None
    since = time.monotonic()
    seen = 0
    while child.poll() is None:
        time.sleep(POLL_SECONDS)
        seen, latest = _phases(err, seen)
        if latest is not None and latest != phase:
            phase, since = latest, time.monotonic()
        now = time.monotonic()
        if now - since > (SETUP_SECONDS if phase is None else phase_seconds):
            return "hung", phase
        if deadline is not None and now > deadline:
            return "late", phase
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
    code: int | None, phase: str | None, out: Path, err: Path, expected: Signature, seconds: float
) -> ScriptRun:
    if code is None or code < 0:
        if phase is None:
            how = "took too long to start" if code is None else f"died of signal {-code} before compiling"
            return ScriptRun("cannot_tell", f"the script {how}", seconds)
        seen = Signature("hang", phase) if code is None else signature_of_crash(code, phase)
        same = fails_the_same_way(expected, seen)
        return ScriptRun("reproduced" if same else "different", seen.summary, seconds)
    match = _LAST_LINE.fullmatch(_tail(out))
    if match is None:
        if phase is not None and expected.kind == "crash":
            seen = signature_of_crash(code, phase)
            same = fails_the_same_way(expected, seen)
            return ScriptRun("reproduced" if same else "different", seen.summary, seconds)
        return ScriptRun("cannot_tell", f"the script ended with status {code}: {_tail(err)}", seconds)
    if match[4]:
        return ScriptRun("different" if code else "not_reproduced", match[5] or match[4], seconds)
    return ScriptRun(_ANSWERS.get(code, "cannot_tell"), match[2] or match[3], seconds)


def _tail(path: Path) -> str:
    """The last line with something in it."""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        lines = file.read().decode("utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""
