"""A case may come from a stranger: the one door through which its files are read, and whose word lets them be executed.

Read are regular files only, no link followed, no more bytes than agreed. A pipe without a writer or a device without
an end would stop whoever looks for ever, and a link would lead to a file that is none of the case's. Executed without
asking is only what was made here or agreed to here. A mark in the folder says so: made with a key that only this user
has, over the id of the case and the number of the folder on its disk, so that a copy, an unpacked archive or a folder
that came back from elsewhere carries none.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import stat
from pathlib import Path, PurePosixPath
from typing import Any

# Of texts that a person or a search reads: graphs, records, scripts, tracebacks.
MOST_TEXT = 64 << 20


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
                raise NotRead(f"{name} is no regular file")
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
        return json.loads(raw.decode("utf-8"), parse_constant=_no_number, parse_float=_finite)
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
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise ValueError(f"{text[:20]} is beyond all numbers")
    return value


MARK = ".made-here"
_KEY_BYTES = 32


def is_ours(folder: Path, case_id: str) -> bool:
    """Whether this case was made or agreed to by this user on this machine: `is_ours(folder.path, folder.case.id)`."""
    key = _key(make=False)
    try:
        said = read_inside(folder, MARK, 200)
        return key is not None and hmac.compare_digest(said, _mark(key, folder, case_id))
    except (NotRead, OSError):
        return False


def mark_as_ours(folder: Path, case_id: str) -> None:
    """From now on the case counts as made here; where no key can be kept, it will be asked about."""
    key = _key(make=True)
    if key is None:
        return
    with contextlib.suppress(OSError):
        (folder / MARK).unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(folder / MARK, flags, 0o600), "wb") as file:
            file.write(_mark(key, folder, case_id))


def _mark(key: bytes, folder: Path, case_id: str) -> bytes:
    return hmac.new(key, f"{case_id} {os.stat(folder).st_ino}".encode(), "sha256").hexdigest().encode()


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
