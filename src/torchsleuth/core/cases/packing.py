"""A case as one file to share, and back: what a person would send, less secrets, paths of the machine and work files.

A packed case is looked at without being unpacked, and what is unpacked counts as a stranger's: nothing of it is
executed before someone agreed to that.
"""

from __future__ import annotations

import json
import lzma
import os
import secrets
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torchsleuth.core.cases.door import NotRead, inside, parse_json, read_inside
from torchsleuth.core.cases.errors import CaseError, DamagedCase, error_of_oserror
from torchsleuth.core.cases.folder import CaseFolder
from torchsleuth.core.cases.model import ID, MAX_BYTES, Case, case_from_json
from torchsleuth.core.cases.scrub import HIDDEN, scrubbed, without_paths
from torchsleuth.core.protocol.files import growing

CONTENTS = "CONTENTS.txt"
# Kernels, answers of trials and scripts on the way: of use on this machine only.
_WORK = ("minify", "checkpoints", "also", "values")
_BINARY = (".safetensors", ".bin", ".pt")
# A case keeps at most 256 MB of inputs.
MOST_BYTES = 1 << 30
MOST_FILES = 20_000
# Files of a zip carry a date; this one says nothing of the machine.
_DATE = (2000, 1, 1, 0, 0, 0)


class NotPacked(CaseError):
    """A file that cannot be packed, read as a packed case, or unpacked."""


@dataclass(frozen=True)
class Packed:
    """What was packed: the names with their sizes, and what was left out or changed with the reason."""

    path: Path
    files: tuple[tuple[str, int], ...]
    removed: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        """The list that goes with it."""
        held = [f"  {name}, {size} bytes" for name, size in self.files]
        kept = {name for name, _ in self.files}
        gone = [f"  {'from ' if name in kept else ''}{name}: {why}" for name, why in self.removed] or [
            "  nothing"
        ]
        return "\n".join(["What is in it", *held, "What was removed", *gone]) + "\n"


def pack_case(folder: CaseFolder, target: Path) -> Packed:
    """Writes the case into one file: `pack_case(folder, Path("torchsleuth-1a2b3c4d.zip")).files`."""
    contents: dict[str, bytes] = {}
    removed: list[tuple[str, str]] = []
    project = _project(folder)
    for name in _names(folder.path, removed):
        try:
            data = read_inside(folder.path, name, MOST_BYTES - sum(map(len, contents.values())))
        except NotRead as why:
            removed.append((name, str(why)))
            continue
        contents[name] = data if name.endswith(_BINARY) else _clean(name, data, project, removed)
    if "case.json" not in contents:
        raise NotPacked(f"The case in {folder.path} cannot be packed: its case.json cannot be read.")
    files = tuple((name, len(data)) for name, data in contents.items())
    packed = Packed(target, files, tuple(removed))
    try:
        with growing(target) as part, zipfile.ZipFile(part, "x", zipfile.ZIP_DEFLATED) as archive:
            for name, data in [(CONTENTS, str(packed).encode()), *contents.items()]:
                archive.writestr(
                    zipfile.ZipInfo(f"{folder.case.id}/{name}", _DATE), data, zipfile.ZIP_DEFLATED
                )
    except OSError as failure:
        raise error_of_oserror(target, failure) from failure
    return packed


def _names(folder: Path, removed: list[tuple[str, str]]) -> Iterator[str]:
    """The regular files of a case that are for others, in order; what is left out is noted."""
    for at, folders, files in os.walk(folder):
        here = Path(at).relative_to(folder)
        for each in sorted(folders):
            if each in _WORK and at == str(folder):
                removed.append((f"{each}/", "work files, of use on this machine only"))
            elif (Path(at) / each).is_symlink():
                removed.append(((here / each).as_posix(), "it is a link"))
        folders[:] = sorted(
            f for f in folders if not f.startswith(".") and not (f in _WORK and at == str(folder))
        )
        yield from ((here / each).as_posix() for each in sorted(files) if not each.startswith("."))


def _project(folder: CaseFolder) -> str:
    """The folder of the program that failed; empty where nobody knows."""
    if folder.case.script and os.path.isabs(folder.case.script[0]):
        return os.path.dirname(folder.case.script[0])
    program = folder.case.extra.get("program")
    where = program.get("cwd") if isinstance(program, dict) else None
    return where if isinstance(where, str) else ""


def _clean(name: str, data: bytes, project: str, removed: list[tuple[str, str]]) -> bytes:
    """A text without what is nobody else's."""
    text = data.decode("utf-8", errors="replace")
    hidden_before = text.count(HIDDEN)
    if name in ("record.json", "case.json"):
        try:
            doc = json.loads(text)
            if isinstance(doc, dict) and doc.pop("program", None):
                removed.append((name, "how and where the program was started"))
                text = json.dumps(doc, indent=1)
        except (ValueError, RecursionError):
            pass
    try:
        clean = scrubbed(name, text, everywhere=True)
    except RecursionError:
        clean = scrubbed("text", text)
    if hidden_before:
        removed.append((name, f"secrets, taken out when it was written: {hidden_before}"))
    if (gone := clean.count(HIDDEN) - hidden_before) > 0:
        removed.append((name, f"secrets: {gone}"))
    elif _differ(name, text, clean):
        removed.append((name, "the home folder or the name of the user"))
    if (shorter := without_paths(name, clean, project)) != clean:
        removed.append(
            (name, "paths of the machine: what is left is relative to the program, or the last part")
        )
    return shorter.encode("utf-8", errors="backslashreplace")


def _differ(name: str, text: str, clean: str) -> bool:
    """Whether something was taken out; that a document is written in other lines does not count."""
    try:
        return json.loads(clean) != json.loads(text) if name.endswith(".json") else clean != text
    except (ValueError, RecursionError):
        return clean != text


def is_packed(wanted: str) -> bool:
    """Whether a name is that of a packed case's file: `is_packed("torchsleuth-1a2b3c4d.zip")`."""
    try:
        return wanted.endswith(".zip") and os.path.isfile(wanted)
    except ValueError:
        return False


def read_packed(path: Path) -> Case:
    """The case in a packed file; nothing is unpacked: `read_packed(Path("torchsleuth-1a2b3c4d.zip")).kind`."""
    with _archive(path) as archive:
        case_id, names = _members(path, archive)
        if "case.json" not in names:
            raise NotPacked(f"{path} is not a packed case: it holds no case.json.")
        return _case(path, case_id, _bytes(path, archive, f"{case_id}/case.json", MAX_BYTES))


def unpack_case(path: Path, cases_dir: Path) -> CaseFolder:
    """Puts a packed case among the others: `unpack_case(Path("torchsleuth-1a2b3c4d.zip"), cases_dir).path`."""
    case = read_packed(path)
    target = cases_dir / case.id
    if os.path.lexists(target):
        raise NotPacked(
            f"There is a case {case.id} in {cases_dir} already; name another folder with --cases DIR."
        )
    growing = target.with_name(f".{case.id}-{secrets.token_hex(4)}")
    try:
        cases_dir.mkdir(parents=True, exist_ok=True)
        growing.mkdir(mode=0o700)
        with _archive(path) as archive:
            left = MOST_BYTES
            for name in _members(path, archive)[1]:
                data = _bytes(path, archive, f"{case.id}/{name}", left)
                left -= len(data)
                (growing / name).parent.mkdir(parents=True, exist_ok=True)
                with open(growing / name, "xb") as file:
                    file.write(data)
        os.rename(growing, target)
    except OSError as failure:
        raise error_of_oserror(cases_dir, failure) from failure
    finally:
        shutil.rmtree(growing, ignore_errors=True)
    return CaseFolder(target, case)


def _archive(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as why:
        raise NotPacked(f"{path} cannot be read as a packed case ({why}).") from why


def _members(path: Path, archive: zipfile.ZipFile) -> tuple[str, list[str]]:
    """The id of the one case in it, and the names of its files, each of which stays inside its folder."""
    names = [info.filename for info in archive.infolist() if not info.is_dir()]
    if len(names) > MOST_FILES or len(set(names)) != len(names):
        raise NotPacked(f"{path} is not a packed case: it holds too many files, or one twice.")
    tops = {name.partition("/")[0] for name in names}
    case_id = tops.pop() if len(tops) == 1 else ""
    if not ID.fullmatch(case_id):
        raise NotPacked(f"{path} is not a packed case: its files are not those of one case.")
    files = [name.partition("/")[2] for name in names]
    for name in files:
        try:
            hidden = any(part.startswith(".") for part in inside(name).split("/"))
        except NotRead as why:
            raise NotPacked(f"{path} is not a packed case: {why}.") from why
        if hidden or name.split("/")[0] in _WORK:
            raise NotPacked(f"{path} is not a packed case: it holds {name!r}.")
    return case_id, files


def _bytes(path: Path, archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    try:
        with archive.open(name) as file:
            data = file.read(most + 1)
    except (
        OSError,
        zipfile.BadZipFile,
        RuntimeError,
        ValueError,
        EOFError,
        NotImplementedError,
        zlib.error,
        lzma.LZMAError,
    ) as why:
        raise NotPacked(f"{path} is damaged ({why}); ask for it again.") from why
    if len(data) > most:
        raise NotPacked(f"{path} is not a packed case: {name} is larger than a case's.")
    return data


def _case(path: Path, case_id: str, raw: bytes) -> Case:
    try:
        case = case_from_json(parse_json(raw, "case.json"), path)
    except NotRead as why:
        raise DamagedCase(path, str(why)) from why
    if case.id != case_id:
        raise NotPacked(f"{path} is not a packed case: its id and its folder differ.")
    return case
