"""The one way to write a file that others read meanwhile: beside its place first, then by rename into it.

Whoever reads sees the whole file or none, also where the writer is killed or the disk is full.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
# A disk that takes no more: no bug of anyone's.
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO}


@contextlib.contextmanager
def growing(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to, or to link or copy to; what is there at the end takes the place of `path`.

    Used as `with growing(path) as part: shutil.copyfile(source, part)`.
    """
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes | Callable[[BinaryIO], object], mode: int = 0o666) -> None:
    """Writes a file in one piece: text, bytes, or what a function writes to the file that it is given."""
    with growing(path) as part, os.fdopen(os.open(part, _NEW, mode), "wb") as file:
        if callable(content):
            content(file)
        else:
            file.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)
