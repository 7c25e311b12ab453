"""A case may come from a stranger: the one door through which its files are read, and whose word lets them be executed.

Read are regular files only, no link followed, no more bytes than agreed. A pipe without a writer or a device without
an end would stop whoever looks for ever, and a link would lead to a file that is none of the case's. Executed without
asking is only what was made here or agreed to here. A mark in the folder says so: made with a key that only this user
has, over the id of the case, the number of the folder on its disk and what each file holds that would be executed, so
that a copy, an unpacked archive or a folder that came back from elsewhere carries none, and a changed file is seen.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

# Of texts that a person or a search reads: graphs, records, scripts, tracebacks.
MOST_TEXT = 64 << 20
# No count, size or time in a case is larger, and no float holds what is much larger.
_MOST_NUMBER = 1 << 64


class NotRead(ValueError):
    """A file that is not read; says why in a few words."""


def read_inside(folder: Path | str, name: str, most: int = MOST_TEXT) -> bytes:
    """The bytes of a file below a folder; raises `NotRead`. The folder itself is a person's word and may be a link.

    >>> read_inside("/etc", "../etc/passwd")
    Traceback (most recent call last):
    torchsleuth.core.cases.door.NotRead: '../etc/passwd' is not a relative path inside a case folder
    """
    *above, last = PurePosixPath(inside(name)).parts
    try:
        here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in above:
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                deeper = os.open(part, flags, dir_fd=here)
                os.close(here)
                here = deeper
            # Without waiting: opening a pipe would wait for whoever writes to it.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            handle = os.open(last, flags, dir_fd=here)
        finally:
            os.close(here)
        with os.fdopen(handle, "rb") as file:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                raise NotRead(f"{name} is not a regular file")
            if about.st_size > most:
                raise NotRead(f"{name} is larger than {_size(most)}")
            data = file.read(most + 1)
    except OSError as failure:
        raise NotRead(f"{name} cannot be opened ({failure.strerror or failure})") from failure
    except ValueError as failure:  # a null byte
        raise NotRead(str(failure)) from None
    if len(data) > most:
        raise NotRead(f"{name} is larger than {_size(most)}")
    return data


def text_inside(folder: Path | str, name: str, most: int = MOST_TEXT) -> str:
    """The text of a file below a folder; what is no UTF-8 in it is shown as such: `text_inside(path, "graph.py")`."""
    return read_inside(folder, name, most).decode("utf-8", errors="replace")


def json_inside(folder: Path | str, name: str, most: int = MOST_TEXT) -> Any:
    """The JSON of a file below a folder, without numbers JSON does not have: `json_inside(path, "record.json")`."""
    return parse_json(read_inside(folder, name, most), name)


def parse_json(raw: bytes, name: str) -> object:
    """The document in these bytes; `name` is that of their file: `parse_json(b"[1]", "case.json") == [1]`."""
    try:
        return json.loads(
            raw.decode("utf-8"), parse_constant=_no_number, parse_float=_finite, parse_int=_whole
        )
    except RecursionError:
        raise NotRead(f"{name} is nested too deeply") from None
    except ValueError as failure:
        raise NotRead(f"{name} is not JSON ({failure})") from None


def is_file_inside(folder: Path | str, name: str) -> bool:
    """Whether there is a regular file of that name, not a link: `is_file_inside(path, "repro.py")`."""
    try:
        return stat.S_ISREG(os.lstat(Path(folder) / inside(name)).st_mode)
    except (OSError, ValueError):
        return False


def is_own_folder(path: Path | str) -> bool:
    """Whether this is a folder, not a link to one, that belongs to this user: `is_own_folder("/no/such") is False`."""
    try:
        about = os.lstat(path)
    except (OSError, ValueError):
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()


def inside(name: str) -> str:
    """The name, where it stays inside the folder it is meant for: `inside("inputs/x") == "inputs/x"`."""
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts or "\\" in name or "\0" in name:
        raise NotRead(f"{name!r} is not a relative path inside a case folder")
    return name


def _size(most: int) -> str:
    return f"{most >> 20} MiB" if most >= 1 << 20 else f"{most} bytes"


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _whole(text: str) -> int:
    value = int(text) if len(text) < 100 else _MOST_NUMBER + 1
    if abs(value) > _MOST_NUMBER:
        raise ValueError(f"{text[:20]} is beyond all numbers")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise ValueError(f"{text[:20]} is beyond all numbers")
    return value


MARK = ".made-here"
EXECUTED = (
    "graph.py",
    "record.json",
    "call.json",
    "program.py",
    "original.py",
    "repro.py",
    "torchsleuth_runtime.py",
)
"""The files of a case of which something is executed."""
_KEY_BYTES = 32


def changed_since(folder: Path, case_id: str) -> tuple[str, ...] | None:
    """The files that would be executed and are not as they were when this user made the case here, or agreed to it.

    None where it was neither.

    Example: `changed_since(folder.path, folder.case.id) == ("repro.py",)` after somebody has edited that.
    """
    known = _marked(folder, case_id)
    if known is None:
        return None
    return tuple(name for name in EXECUTED if _digest(folder, name) != known.get(name))


def mark_as_ours(folder: Path, case_id: str, written: Iterable[str] = EXECUTED) -> None:
    """From now on these files count as made here; where no key can be kept, they will be asked about.

    What else is marked stays so: a file that somebody changed is not agreed to by our writing another.
    """
    key = _key(make=True)
    if key is None:
        return
    known = (_marked(folder, case_id) or {}) | {name: _digest(folder, name) for name in written}
    files = {name: digest for name, digest in known.items() if digest is not None}
    with contextlib.suppress(OSError):
        (folder / MARK).unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(folder / MARK, flags, 0o600), "wb") as file:
            file.write(json.dumps({"mark": _mark(key, folder, case_id, files), "files": files}).encode())


def _marked(folder: Path, case_id: str) -> dict[str, str | None] | None:
    """The marked files and what they held; None where there is no mark of this user's for this folder."""
    key = _key(make=False)
    try:
        said = json.loads(read_inside(folder, MARK, 10_000))
        files: dict[str, str | None] = said["files"]
        if key is not None and hmac.compare_digest(said["mark"], _mark(key, folder, case_id, files)):
            return files
    except (NotRead, OSError, ValueError, TypeError, KeyError):
        pass
    return None


def _mark(key: bytes, folder: Path, case_id: str, files: Mapping[str, str | None]) -> str:
    what = f"{case_id} {os.stat(folder).st_ino} {json.dumps(files, sort_keys=True)}"
    return hmac.new(key, what.encode(), "sha256").hexdigest()


def _digest(folder: Path, name: str) -> str | None:
    """What a file holds, in short; None where there is none."""
    try:
        return hashlib.sha256(read_inside(folder, name)).hexdigest()
    except NotRead:
        return "unreadable" if os.path.lexists(folder / name) else None


def key_file() -> Path:
    """Where the key lies: $XDG_STATE_HOME/torchsleuth/key, or below ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base, "torchsleuth", "key")


def _key(make: bool) -> bytes | None:
    path = key_file()
    with contextlib.suppress(NotRead):
        return read_inside(path.parent, path.name, _KEY_BYTES) or None
    if make:
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = path.with_name(f".{secrets.token_hex(8)}")
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
            try:
                os.link(part, path)  # whoever comes second takes the key of the first
            except FileExistsError:
                pass
            finally:
                part.unlink()
        return _key(make=False)
    return None
