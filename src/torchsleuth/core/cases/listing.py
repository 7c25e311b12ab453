"""The list of cases: what lies in the folder, read anew each time, so that there is nothing to keep in step."""

import contextlib
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from torchsleuth.core.cases.errors import CaseError
from torchsleuth.core.cases.model import ID, Case
from torchsleuth.core.cases.reading import read_case


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


def list_cases(cases_dir: Path | str) -> list[CaseSummary]:
    """The cases in a folder, newest first; none where there is no folder: `list_cases("cases")[0].id`."""
    found = [_summary(Path(cases_dir) / name) for name in case_names(cases_dir)]
    return sorted(found, key=lambda c: (c.created, c.id), reverse=True)


def case_names(cases_dir: Path | str) -> list[str]:
    """The folders that have the name of a case; links are none: `case_names("cases") == ["1a2b3c4d"]`."""
    with contextlib.suppress(OSError, ValueError), os.scandir(cases_dir) as entries:
        return [e.name for e in entries if ID.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
    return []


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


def _summary(path: Path) -> CaseSummary:
    try:
        case = read_case(path)
        if case.id == path.name:
            return summary_of(path, case)
        why = f"The case in {path} says that its id is {case.id}; rename the folder to that."
    except CaseError as failure:
        why = str(failure)
    try:
        when = os.lstat(path / "case.json").st_mtime
    except OSError:
        when = 0.0
    created = datetime.fromtimestamp(when, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return CaseSummary(id=path.name, path=path, created=created, kind="damaged", error=why)
