"""The kernel cache that the trials of one search share, kept whole when a compiler is killed in the middle.

Torch takes a shared library that exists for one that is finished. A linker that was killed leaves a file without
its header, and every later trial would fail on it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

from torchsleuth.core.processes.tree import open_files

_ELF_64_LITTLE = b"\x7fELF\x02\x01"
_SECTIONS_AT = 0x28
_SECTION_SIZE_AT = 0x3A


def drop_torn(folder: Path, since: float, writers: Iterable[int] = ()) -> list[Path]:
    """Removes the libraries written after `since` (of time.time) that were not finished; which ones they were.

    What one of the processes `writers` still has open is on its way.

    >>> drop_torn(Path("no-such-folder"), 0.0)
    []
    """
    torn = []
    held = open_files(writers)
    for path in folder.rglob("*.so"):
        try:
            if path.stat().st_mtime >= since - 1 and not is_whole(path) and str(path.resolve()) not in held:
                path.unlink()
                torn.append(path)
        except OSError:
            continue
    return torn


def is_whole(library: Path) -> bool:
    """Whether a shared library has its header and everything the header promises; other formats count as whole.

    >>> import sys; is_whole(Path(sys.executable))
    True
    """
    with open(library, "rb") as file:
        head = file.read(64)
    if len(head) < 64 or not head.startswith(b"\x7fELF"):
        return False
    if not head.startswith(_ELF_64_LITTLE):
        return True
    (sections,) = struct.unpack_from("<Q", head, _SECTIONS_AT)
    size, count = struct.unpack_from("<HH", head, _SECTION_SIZE_AT)
    return sections + size * count <= os.path.getsize(library)
