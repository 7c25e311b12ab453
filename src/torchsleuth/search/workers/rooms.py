"""A trial on another machine: files that it reads and writes lie in a room of its own there; what it wrote comes back.

A trial names files of the machine that asks: the store with its values, into which a recording is written, the file for
the steps of a compile, those of an analysis. No node is asked to have these paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torchsleuth.core.cases.door import NotRead, inside
from torchsleuth.core.protocol.files import write_whole
from torchsleuth.core.protocol.trials import Question, Trial

STORE, TRACE = "store", "trace"
# Of an analysis, what is told on the way, and the values it compared.
_OF_ANALYSIS = ("told", "values")


def in_room(trial: Trial, room: Path) -> Trial:
    """The trial with every file that it names in a folder that is there.

    >>> from torchsleuth.script_runtime.signature import Signature
    >>> in_room(Trial("", Signature("crash", "run"), store="/here/values"), Path("/there")).store
    '/there/store'
    """
    moved = {name: str(room / name) for name in places_of(trial)}
    analysis = {**trial.analysis, **{name: moved[name] for name in _OF_ANALYSIS if name in moved}}
    return replace(trial, store=moved.get(STORE, trial.store), trace=moved.get(TRACE), analysis=analysis)


def places_of(trial: Trial) -> dict[str, Path]:
    """Where the files of each kind belong on the machine that asks."""
    # What a whole program has there is its name.
    store = None if trial.question is Question.PROGRAM else trial.store
    named = {STORE: store, TRACE: trial.trace, **{n: trial.analysis.get(n) for n in _OF_ANALYSIS}}
    return {name: Path(path) for name, path in named.items() if path is not None}


def files_in(room: Path, known: Mapping[str, object]) -> dict[str, bytes]:
    """What a trial wrote into its room, without the values that it was given."""
    found = (path for path in sorted(room.rglob("*")) if path.is_file() and path.stem not in known)
    return {str(path.relative_to(room)): path.read_bytes() for path in found}


def bring_back(trial: Trial, files: Mapping[str, bytes]) -> None:
    """Puts what a trial wrote elsewhere where it would have written it here, and nowhere else."""
    places = places_of(trial)
    for name, data in files.items():
        kind, _, rest = name.partition("/")
        if kind not in places:
            raise NotRead(f"{name!r} is no file that the trial was to write")
        path = places[kind] / inside(rest) if rest else places[kind]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
