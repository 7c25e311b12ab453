"""Whether a case was made here, or agreed to here: only then may what it holds be executed without asking.

A mark in the folder says so: made with a key that only this user has, over the id of the case and the number of the
folder on its disk, so that a copy, an unpacked archive or a folder that came back from elsewhere carries none.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
from pathlib import Path

from torchsleuth.core.cases.door import NotRead, read_inside

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
