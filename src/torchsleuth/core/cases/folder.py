"""Case folders on disk: written whole or not at all, listed, and found again by id, prefix, path or `last`.

A new case grows in a hidden folder beside its place and is renamed into it; later sections replace
case.json by rename, under a lock on the folder.  Whoever reads therefore sees a complete case at any time.
The list is read anew each time, so that there is nothing to keep in step. Reading is JSON only: nothing of a case is
ever executed here. Of a case that cannot be opened, what can be read is salvaged for looking at, never written back.
Beside the cases lies what observed runs leave for a person, in `runs/<run id>/`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torchsleuth.core.cases.door import (
    EXECUTED,
    changed_since,
    inside,
    is_file_inside,
    json_inside,
    key_file,
    mark_as_ours,
    text_inside,
)
from torchsleuth.core.cases.errors import (
    AmbiguousCase,
    CaseError,
    CaseInUse,
    CaseNotFound,
    DamagedCase,
    NotWritable,
    error_of_oserror,
)
from torchsleuth.core.cases.model import ID, SCHEMA, Case, case_document, case_from_json, read_case
from torchsleuth.core.cases.scrub import scrubbed
from torchsleuth.core.protocol.files import growing, write_whole

try:
    import fcntl
except ImportError:  # not on Windows; there two writers of one case may lose a count, never a file
    fcntl = None  # type: ignore[assignment]


# Held while a case is searched; never removed, or two could hold one each.
LOCK = ".lock"
RUNS = "runs"


@dataclass(frozen=True)
class CaseFolder:
    """A case and where it lies: `folder.text("original.py")`."""

    path: Path
    case: Case

    def file(self, name: str) -> Path:
        """The path of one of the case's files, to write to or to run; it may not exist yet. What is in it: `text`."""
        return self.path / inside(name)

    def has(self, name: str) -> bool:
        """Whether there is a regular file of that name: `folder.has("repro.py")`."""
        return is_file_inside(self.path, name)

    def text(self, name: str) -> str:
        """The text of one of the case's files; raises `NotRead`, a ValueError, where there is none to be read."""
        return text_inside(self.path, name)

    def json(self, name: str) -> Any:
        """The document in one of the case's files; raises as `text` does."""
        return json_inside(self.path, name)

    def document(self) -> dict[str, object]:
        """The case as `--json` shows it: case.json, and where it lies."""
        return {**self.case.to_json(), "path": str(self.path)}


def now() -> str:
    """The present as case.json writes it: UTC, to the microsecond, so that text order is time order."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def open_case(cases_dir: Path | str, wanted: str) -> CaseFolder:
    """The case that an id, a unique prefix of one, a path or `last` names: `open_case("cases", "last")`."""
    cases_dir = Path(cases_dir)
    if (path := _case_path(wanted)) is not None:
        return _folder_at(path)
    if wanted == "last":
        matches = [c.id for c in list_cases(cases_dir) if c.error is None][:1]
    else:
        matches = [name for name in case_names(cases_dir) if wanted and name.startswith(wanted.lower())]
    if not matches:
        raise CaseNotFound(wanted, cases_dir, case_names(cases_dir))
    if len(matches) > 1:
        raise AmbiguousCase(wanted, sorted(matches))
    return _folder_at(cases_dir / matches[0])


def write_case(cases_dir: Path | str, case: Case, files: Mapping[str, str | Path]) -> CaseFolder:
    """Puts a new case on disk, or counts it where a case of this id is there already.

    Text becomes a file; a `Path` (a file or a whole folder) is linked in, or copied where links do not
    work, and stays where it was.  Of a new case `write_case(dir, case, {"graph.py": source}).case.seen` is 1.
    """
    if not ID.fullmatch(case.id):
        raise ValueError(f"case id {case.id!r} is not eight hexadecimal digits")
    target = Path(cases_dir) / case.id
    with _explained(Path(cases_dir)):
        target.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(3):  # another writer may create, and a person delete, the folder in between
            with contextlib.suppress(FileNotFoundError):
                if (counted := _count_again(target, case)) is not None:
                    return counted
            with contextlib.suppress(FileExistsError):
                return _write_new(target, case, files)
    raise DamagedCase(target, "another process keeps replacing it")


def update_case(
    folder: CaseFolder, files: Mapping[str, str | Path] | None = None, **sections: Any
) -> CaseFolder:
    """Adds files, then replaces sections of case.json: `update_case(folder, verified=Verified(3, 3, True))`.

    The document is read again first, so that sections written meanwhile by others stay; of `extra` its keys are added.
    """
    unknown = sections.keys() - {f.name for f in dataclasses.fields(Case) if f.name not in ("id", "schema")}
    if unknown:
        raise TypeError(f"case.json has no section {', '.join(sorted(unknown))}")
    with _explained(folder.path), _locked(folder.path):
        ours = changed_since(folder.path, folder.case.id) is not None
        for name, content in (files or {}).items():
            _put(folder.path, name, content)
        if ours and (written := [name for name in EXECUTED if name in (files or {})]):
            mark_as_ours(folder.path, folder.case.id, written)
        doc = case_document(folder.path)
        changed = dataclasses.replace(case_from_json(doc, folder.path), **sections)
        fresh = changed.to_json()
        doc.update({name: fresh[name] for name in sections if name != "extra"}, **dict(changed.extra))
        return _put_document(folder.path, doc)


def put_files(folder: Path, files: Mapping[str, str]) -> None:
    """Writes texts into a folder, each whole or not at all: `put_files(Path("out"), {"issue.md": text})`."""
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            for name, content in files.items():
                _put(folder, name, content)


def _case_path(wanted: str) -> Path | None:
    """The case folder that a path names, directly or by one of its files."""
    path = Path(wanted)
    with contextlib.suppress(OSError, ValueError):  # too long, or no path at all
        if wanted and (path / "case.json").is_file():
            return path
        if wanted and path.is_file() and (path.parent / "case.json").is_file():
            return path.parent
        if os.sep in wanted and path.is_dir():
            return path
    return None


def _folder_at(path: Path) -> CaseFolder:
    return CaseFolder(path, read_case(path))


def _count_again(target: Path, case: Case) -> CaseFolder | None:
    """The case already there with one more sighting; None, and out of the way, where it is damaged or a stranger's."""
    with _locked(target):
        try:
            doc = case_document(target)
            old = case_from_json(doc, target)
        except DamagedCase:
            _set_aside(target, "damaged")
            return None
        changed = changed_since(target, target.name)
        if changed != () and key_file().is_file():  # its scripts are not run in the place of ours
            _set_aside(target, "from-elsewhere" if changed is None else "changed")
            return None
        ranks = {each for rank in (old.rank, case.rank) if rank for each in rank.split(", ")}
        doc.update(seen=old.seen + case.seen, last_seen=case.last_seen or now())
        doc.update(rank=", ".join(sorted(ranks, key=lambda rank: (len(rank), rank))) or None)
        return _put_document(target, doc)


def _set_aside(target: Path, why: str) -> None:
    os.rename(target, target.with_name(f"{target.name}.{why}-{secrets.token_hex(4)}"))


def _write_new(target: Path, case: Case, files: Mapping[str, str | Path]) -> CaseFolder:
    case = dataclasses.replace(case, last_seen=case.last_seen or case.created)
    growing = target.with_name(f".{target.name}-{secrets.token_hex(4)}")
    growing.mkdir(mode=0o700)  # inputs and sources are nobody else's
    try:
        for name, content in files.items():
            _put(growing, name, content)
        written = _put_document(growing, case.to_json())
        mark_as_ours(growing, case.id)
        try:
            os.rename(growing, target)
        except OSError as failure:
            if target.exists():
                raise FileExistsError(str(target)) from failure
            raise
    finally:
        shutil.rmtree(growing, ignore_errors=True)
    return CaseFolder(target, written.case)


def _put_document(folder: Path, doc: Mapping[str, object]) -> CaseFolder:
    """Writes case.json; the case as it now is on disk."""
    text = scrubbed("case.json", json.dumps(doc, allow_nan=False))
    case = case_from_json(json.loads(text), folder)
    _put(folder, "case.json", text)
    return CaseFolder(folder, case)


def _put(folder: Path, name: str, content: str | Path) -> None:
    """Writes text, of which a reader never sees half; links or copies a path in."""
    path = folder / inside(name)
    for above in [p for p in path.parents if p != folder and p.is_relative_to(folder)]:
        if above.is_symlink():
            raise NotWritable(above, "it is a link, which may lead out of the case")
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path) and content.resolve() == path.resolve():
        return
    if isinstance(content, Path) and content.is_dir():
        for at, _, names in os.walk(content):
            for each in names:
                if is_file_inside(at, each):  # what a link points to is not the program's to give away
                    _put(folder, f"{name}/{Path(at, each).relative_to(content).as_posix()}", Path(at, each))
        return
    if isinstance(content, Path):
        with growing(path) as part:
            try:
                os.link(content, part, follow_symlinks=False)
            except OSError:
                shutil.copyfile(content, part, follow_symlinks=False)
    else:
        write_whole(path, scrubbed(name, content))


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as failure:
        raise error_of_oserror(path, failure) from failure


@contextlib.contextmanager
def working_on(folder: CaseFolder) -> Iterator[None]:
    """One at a time searches in a case, however long that takes; raises `CaseInUse` for the second.

    Used as `with working_on(folder): ...`; single writes need no more than `update_case`.
    """
    if fcntl is None:
        yield
        return
    with _explained(folder.path):
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(folder.path / LOCK, flags, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CaseInUse(folder.path) from None
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One writer per case at a time; the lock is the folder itself, so it leaves no file behind."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


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


def run_folder(cases_dir: Path, run_id: str) -> Path:
    """The folder of a run, made where it is missing: `run_folder(Path("cases"), "20260101-120000-abcdef")`."""
    folder = cases_dir.absolute() / RUNS / run_id
    with _explained(cases_dir):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def write_result(folder: Path, name: str, result: object) -> Path:
    """Writes text, or anything else as JSON, in one piece and without secrets.

    Used as `write_result(folder, "breaks.json", document)`.
    """
    text = result if isinstance(result, str) else json.dumps(result, indent=1)
    path = folder / name
    with _explained(folder):
        write_whole(path, scrubbed(name, text))
    return path


# What stands in the place of a field without which there is no case.
_INSTEAD: dict[str, object] = {
    "schema": SCHEMA,
    "id": "00000000",
    "created": "",
    "torch": "unknown",
    "device": "unknown",
    "kind": "runtime_error",
    "phase": "run",
    "direction": None,
    "backend": "unknown",
    "after": None,
    "signature": {"kind": "runtime_error", "phase": "run", "message": "what failed cannot be read"},
}


def salvaged_case(cases_dir: Path | str, wanted: str) -> tuple[CaseFolder, tuple[str, ...]]:
    """The case, and what of it could not be read; raises where there is nothing that looks like a case.

    `salvaged_case("torchsleuth-cases", "last")[1] == ()` for a case that is whole.
    """
    try:
        return open_case(cases_dir, wanted), ()
    except CaseNotFound:
        raise
    except CaseError as why:
        path = getattr(why, "path", None)
        if path is None or not Path(path).is_dir():
            raise
        case, lost = _what_is_there(Path(path))
        return CaseFolder(Path(path), case), (str(why), *lost)


def _what_is_there(path: Path) -> tuple[Case, list[str]]:
    try:
        doc = case_document(path)
    except DamagedCase:
        doc = {}
    kept = dict(_INSTEAD, **({"id": path.name} if ID.fullmatch(path.name) else {}))
    lost = []
    fields = [field.name for field in dataclasses.fields(Case)]
    for name in fields:
        if name in ("schema", "extra") or name not in doc:
            continue
        try:
            case_from_json({**kept, name: doc[name]}, path)
        except DamagedCase as why:
            lost.append(f"{name} is left out: {why.why}")
        else:
            kept[name] = doc[name]
    more = {key: value for key, value in doc.items() if key not in fields}
    return case_from_json({**more, **kept}, path), lost
