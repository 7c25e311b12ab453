"""What a sweep runs: the programs of a folder or a list, and the settings that each is run with."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.changes import Change
from torchsleuth.front.supervise.program_runs import Program

# What a person writes for "as the program has it".
AS_IS = "as-is"
DTYPES = ("float32", "float64", "bfloat16", "float16")
# A list of programs that is longer is a mistake, such as a data file.
MOST_PROGRAMS = 100_000


class NothingToSweep(SleuthError):
    """What was named holds no programs, or one that cannot be started."""


@dataclass(frozen=True)
class SweptProgram:
    """One program of a sweep; `text` is the hash of its script, so that a changed one is run again."""

    name: str
    program: Program
    text: str = ""


def way(backend: str | None = None, mode: str | None = None, dtype: str | None = None) -> Change:
    """How a program is compiled; None leaves it as the program has it.

    >>> way("inductor", "max-autotune", "bfloat16").name, way().name
    ('inductor max-autotune bfloat16', 'as is')
    """
    name = " ".join(filter(None, (backend, mode, dtype))) or "as is"
    return Change(name=name, backend=backend, mode=mode, dtype=dtype)


def uncompiled(setting: Change) -> Change:
    """The same numbers without the compiler: where that fails, the compiler is not to blame.

    >>> uncompiled(way("inductor", dtype="bfloat16")).name
    'not compiled bfloat16'
    """
    name = " ".join(filter(None, ("not compiled", setting.dtype)))
    return Change(name=name, dtype=setting.dtype, uncompiled=True)


def settings_of(backends: Sequence[str], modes: Sequence[str], dtypes: Sequence[str]) -> list[Change]:
    """Every combination, each once; a mode is Inductor's, so other backends have none.

    >>> [setting.name for setting in settings_of(["inductor", "aot_eager"], ["default", "max-autotune"], ["as-is"])]
    ['inductor default', 'inductor max-autotune', 'aot_eager']
    """
    found: dict[Change, None] = {}
    for dtype in map(_given, dtypes):
        for backend in map(_given, backends):
            for mode in map(_given, modes) if backend in (None, "inductor") else [None]:
                found[way(backend, mode, dtype)] = None
    return list(found)


def _given(word: str) -> str | None:
    return None if word == AS_IS else word


def programs_in(where: Path) -> list[SweptProgram]:
    """The programs of a folder (its *.py files), of a list (a command in each line), or one script.

    Commands are those that a person would type here: `train.py --epochs 1`, `-m package.train`, `torchrun …`.
    """
    if where.is_dir():
        scripts = sorted(p for p in where.glob("*.py") if not p.name.startswith(("_", ".")))
        found = [_program([os.path.relpath(script)], script.name) for script in scripts]
        why = "holds no *.py file"
    elif where.suffix == ".py" and where.is_file():
        return [_program([str(where)], where.name)]
    elif where.is_file():
        found = [_program(words, shlex.join(words)) for words in _commands(where)]
        why = "names no program"
    else:
        raise NothingToSweep(f"there is no folder, list or script {str(where)!r} here")
    if not found:
        raise NothingToSweep(
            f"{where} {why}; give a folder of programs, or a file with a command in each line"
        )
    return list({each.name: each for each in found}.values())


def _commands(path: Path) -> Iterable[list[str]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        if len(lines) > MOST_PROGRAMS:
            raise ValueError(f"it has {len(lines)} lines")
        commands = [shlex.split(line, comments=True) for line in lines]
    except (OSError, ValueError) as why:
        raise NothingToSweep(f"{path} cannot be read as a list of programs ({why})") from None
    return [words for words in commands if words]


def _program(words: list[str], name: str) -> SweptProgram:
    if words[0] == "-m" and words[1:]:
        return SweptProgram(name, Program((sys.executable, *words), os.getcwd()))
    if words[0].endswith(".py"):
        try:
            text = hashlib.sha256(Path(words[0]).read_bytes()).hexdigest()
        except OSError as why:
            raise NothingToSweep(f"there is no script {words[0]!r} here ({why.strerror})") from None
        return SweptProgram(name, Program((sys.executable, *words), os.getcwd()), text)
    if shutil.which(words[0]) is None:
        raise NothingToSweep(f"there is no script and no command {words[0]!r} here")
    return SweptProgram(name, Program(tuple(words), os.getcwd()))
