"""Answers that were given once are not asked for again: the log of trials, append-only, is the resume file.

One JSON line per answer; a line that was cut off by a kill is skipped. Only what would come out the same again is an
answer: time-outs, kills from outside and errors are tried anew. Answers of another torch are not ours.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torchsleuth.core.protocol.trials import Outcome
from torchsleuth.script_runtime.signature import Signature

# What a crashing program does to itself; any other signal came from outside.
_OWN_SIGNALS = {"SIGSEGV", "SIGABRT", "SIGFPE", "SIGBUS", "SIGILL", "SIGTRAP", "SIGSYS"}
# Settings by environment change answers as those in a trial do; where files lie does not.
_SETTINGS = ("TORCH", "PYTORCH", "TRITON", "OMP_", "MKL_", "ATEN_", "CUDA_", "CXX", "CC")
_PLACES = ("_DIR", "_PATH", "_HOME")
# Enough of a traceback to read; the log of a long search stays small.
_TEXT = 8 << 10


class TrialLog:
    """The answers in one file; None instead of a path remembers for the life of this object only."""

    def __init__(self, path: Path | None = None, context: str | None = None) -> None:
        self.path = path
        self._context = surroundings(os.environ) if context is None else context
        self._answers: dict[str, tuple[Outcome, int]] = {}
        self._lock = threading.Lock()
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        with open(path, "rb") as file:
            for line in file:
                try:
                    entry = json.loads(line)
                    if entry["context"] == self._context:
                        outcome = Outcome.from_json(entry["outcome"])
                        self._answers[entry["key"]] = replace(outcome, cached=True), int(entry["runs"])
                except (ValueError, KeyError, TypeError):  # cut off by a kill, or not ours
                    continue

    def __len__(self) -> int:
        return len(self._answers)

    def answer(self, key: str, runs: int = 1) -> Outcome | None:
        """The outcome known for `key`; a pass counts only if it was seen at least `runs` times in a row.

        >>> TrialLog().answer("unknown") is None
        True
        """
        outcome, seen = self._answers.get(key, (None, 0))
        if outcome is not None and outcome.signature is None and seen < runs:
            return None
        return outcome

    def remember(self, key: str, outcome: Outcome, expected: Signature, runs: int = 1) -> bool:
        """Keeps the outcome where it is an answer; whether it was kept."""
        if not is_answer(outcome, expected):
            return False
        known = replace(outcome, text=outcome.text[-_TEXT:], cached=True)
        with self._lock:
            self._answers[key] = known, runs
            if self.path is not None:
                entry = {"key": key, "runs": runs, "context": self._context, "outcome": known.to_json()}
                _append(self.path, json.dumps(entry).encode() + b"\n")
        return True


def _append(path: Path, line: bytes) -> None:
    """Adds one line in one write, on a line of its own even where the last one was cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b", buffering=0) as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = b"\n" + line
        file.write(line)


def is_answer(outcome: Outcome, expected: Signature) -> bool:
    """Whether the same trial would come out the same again.

    >>> is_answer(Outcome(Signature("hang", "run"), 30.0), Signature("crash", "run"))
    False
    """
    if outcome.error is not None:
        return False
    seen = outcome.signature
    if seen is None or outcome.fails_like(expected):
        return True
    if seen.kind == "crash":
        return seen.signal in _OWN_SIGNALS or (seen.signal or "").startswith("exit ")
    return seen.kind != "hang"


def surroundings(environment: Mapping[str, str]) -> str:
    """A short name for what answers depend on beside the trial: torch, Python, machine, settings by environment.

    >>> surroundings({}) == surroundings({"HOME": "elsewhere"})
    True
    """
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = "?"
    parts = [torch, platform.python_version(), platform.machine(), settings_in(environment)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def settings_in(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """The variables that set up torch and its compilers, sorted: `settings_in({"HOME": "x"}) == []`."""
    return sorted(
        (name, value)
        for name, value in environment.items()
        if name.startswith(_SETTINGS) and not name.endswith(_PLACES) and not name.startswith("TORCHSLEUTH_")
    )
