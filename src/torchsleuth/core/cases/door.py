"""The one door through which files of a case or of a spool are read: a stranger may have made them.

Regular files only, no link followed, no more bytes than agreed. A pipe without a writer or a device without an end
would stop whoever looks for ever, and a link would lead to a file that is none of the case's.
"""

from __future__ import annotations

import json
import os
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


def parse_json(raw: bytes, name: str) -> Any:
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
