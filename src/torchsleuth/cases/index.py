"""The list of cases, and a cache that makes it quick.

index.sqlite holds one row per folder, with the size and time of the case.json it was made from.  A listing
looks at the folders first and trusts a row only where these still agree, so a folder added, changed or
removed by hand is noticed, and the index can be thrown away at any time: it is never the only copy.
"""

import contextlib
import dataclasses
import json
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from torchsleuth.cases.errors import CaseError
from torchsleuth.cases.model import ID, Case, WrongShape, read_dataclass
from torchsleuth.cases.reading import read_case

NAME = "index.sqlite"
_LAYOUT = 1  # PRAGMA user_version; another number means: start the index anew
# The index is sound but cannot be written now, or never here: scanning the folders does as well.
_HARMLESS = (
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_READONLY",
    "SQLITE_CANTOPEN",
    "SQLITE_IOERR",
    "SQLITE_FULL",
)
_PATIENCE = 2.0  # seconds to wait for another writer; after that, scanning the folders is quicker


@dataclass(frozen=True)
class CaseSummary:
    """One line of `torchsleuth list`; `error` says why a damaged case could not be read."""

    id: str
    path: Path
    created: str
    kind: str = ""
    phase: str = ""
    direction: str | None = None
    backend: str = ""
    device: str = ""
    summary: str = ""
    calls: int | None = None
    minified_calls: int | None = None
    component: str | None = None
    reproduced: bool | None = None
    seen: int = 1
    last_seen: str | None = None
    rank: str | None = None
    error: str | None = None

    def to_json(self) -> dict[str, object]:
        """A JSON-able dict, the path as text."""
        return {**dataclasses.asdict(self), "path": str(self.path)}


def list_cases(cases_dir: Path | str) -> list[CaseSummary]:
    """The cases in a folder, newest first; none where there is no folder: `list_cases("cases")[0].id`."""
    cases_dir = Path(cases_dir)
    stamps = _stamps(cases_dir)
    known, outdated = _cached(cases_dir, stamps)
    fresh = {name: _summary(cases_dir / name, stamps[name]) for name in stamps if name not in known}
    if outdated or any(stamps[name] for name in fresh):
        _remember(cases_dir, stamps, fresh)
    found = [*known.values(), *fresh.values()]
    return sorted(found, key=lambda c: (c.created, c.id), reverse=True)


def summary_of(path: Path, case: Case) -> CaseSummary:
    """What a listing shows of a case."""
    return CaseSummary(
        id=case.id,
        path=path,
        created=case.created,
        kind=case.kind,
        phase=case.phase,
        direction=case.direction,
        backend=case.backend,
        device=case.device,
        summary=case.signature.summary,
        calls=case.graph.calls if case.graph else None,
        minified_calls=case.minified.calls if case.minified else None,
        component=case.triage.component if case.triage else None,
        reproduced=case.verified.same_signature if case.verified else None,
        seen=case.seen,
        last_seen=case.last_seen,
        rank=case.rank,
    )


def _stamps(cases_dir: Path) -> dict[str, str]:
    """Folder name to size and time of its case.json ("" where that is missing)."""
    stamps = {}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(cases_dir) as entries:
        for entry in entries:
            if ID.fullmatch(entry.name) and entry.is_dir():
                try:
                    stat = os.stat(os.path.join(entry.path, "case.json"))
                    stamps[entry.name] = f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ino}"
                except OSError:
                    stamps[entry.name] = ""
    return stamps


def _summary(path: Path, stamp: str) -> CaseSummary:
    try:
        case = read_case(path)
        if case.id == path.name:
            return summary_of(path, case)
        why = f"The case in {path} says that its id is {case.id}; rename the folder to that."
    except CaseError as failure:
        why = str(failure)
    when = int(stamp.split()[1]) / 1e9 if stamp else 0.0
    created = datetime.fromtimestamp(when, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return CaseSummary(id=path.name, path=path, created=created, kind="damaged", error=why)


def _cached(cases_dir: Path, stamps: dict[str, str]) -> tuple[dict[str, CaseSummary], bool]:
    """The rows that still agree with the folders, and whether there are others."""
    known: dict[str, CaseSummary] = {}
    rows = 0
    try:
        with _database(cases_dir, "ro") as db:
            for name, stamp, doc in db.execute("SELECT id, stamp, doc FROM cases"):
                rows += 1
                if stamp and stamps.get(name) == stamp:
                    fields = {**json.loads(doc), "id": name, "path": cases_dir / name}
                    known[name] = read_dataclass(CaseSummary, fields)
    except (sqlite3.Error, OSError, ValueError, TypeError, RecursionError, WrongShape):
        return {}, bool(rows)
    return known, rows != len(known)


def _remember(cases_dir: Path, stamps: dict[str, str], fresh: dict[str, CaseSummary]) -> None:
    """Brings the index up to date where something changed; a folder that cannot be written does without."""
    with contextlib.suppress(sqlite3.Error, OSError):
        try:
            _write_rows(cases_dir, stamps, fresh)
        except sqlite3.DatabaseError as failure:
            if (failure.sqlite_errorname or "").startswith(_HARMLESS):
                return
            (cases_dir / NAME).unlink(missing_ok=True)
            _write_rows(cases_dir, stamps, {n: _summary(cases_dir / n, s) for n, s in stamps.items()})


def _write_rows(cases_dir: Path, stamps: dict[str, str], fresh: dict[str, CaseSummary]) -> None:
    with _database(cases_dir, "rwc") as db:
        if db.execute("PRAGMA user_version").fetchone()[0] != _LAYOUT:
            db.execute("DROP TABLE IF EXISTS cases")
            db.execute(f"PRAGMA user_version = {_LAYOUT}")
        db.execute("CREATE TABLE IF NOT EXISTS cases (id TEXT PRIMARY KEY, stamp TEXT, doc TEXT)")
        gone = {row[0] for row in db.execute("SELECT id FROM cases")} - stamps.keys()
        db.executemany("DELETE FROM cases WHERE id = ?", [(name,) for name in gone])
        rows = [(name, stamps[name], json.dumps(s.to_json())) for name, s in fresh.items() if stamps[name]]
        db.executemany("INSERT OR REPLACE INTO cases VALUES (?, ?, ?)", rows)


@contextlib.contextmanager
def _database(cases_dir: Path, mode: str) -> Iterator[sqlite3.Connection]:
    """A connection that commits at the end; the plain journal, since WAL fails on network file systems."""
    uri = (cases_dir / NAME).absolute().as_uri() + f"?mode={mode}"
    db = sqlite3.connect(uri, uri=True, timeout=_PATIENCE)
    try:
        with db:
            yield db
    finally:
        db.close()
