"""Kernel caches on disk: what is handed to a fresh one, and how a shared one is kept whole.

In an empty cache Inductor compiles half a dozen tiny programs to learn the vector instructions of this machine: 7 of
the 11 seconds a first compile takes here. They contain nothing of the graph, and are named by the hash of their text
and flags, so handing them to another fresh cache is safe; kernels are never handed on.

In a cache that the trials of a search share, torch takes a shared library that exists for one that is finished. A
linker that was killed leaves a file without its header, and every later trial would fail on it.

Torch's precompiled headers lie in a folder that all programs of a person share. Where a compiler was killed while it
wrote one, torch takes the file for whole and g++ does not: each kernel of each program then takes 2.2 s for 0.5.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import re
import shutil
import struct
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from torchsleuth.core.processes.tree import open_files
from torchsleuth.core.protocol.files import growing

# The probes are below 25 KB; a kernel's library carries `.main.` in its name and starts at twice that.
PROBE_BYTES = 40 << 10
SOURCE_BYTES = 2 << 10
POLL_SECONDS = 0.02


def probe_store() -> Path:
    """Where probes are kept between fresh caches: the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "torchsleuth" / "probes"


def hand_probes_to(cache: Path, store: Path | None = None) -> None:
    """Puts the kept probes into a fresh cache; does nothing where there are none or they cannot be read."""
    _copy(store or probe_store(), cache)


def keep_probes_of(cache: Path, store: Path | None = None) -> None:
    """Keeps the probes of a cache that was fresh; a folder that cannot be written is no harm."""
    _copy(cache, store or probe_store())


def _copy(source: Path, target: Path) -> None:
    try:
        for file in _probes(source):
            wanted = target / file.relative_to(source)
            if not wanted.exists():
                wanted.parent.mkdir(parents=True, exist_ok=True)
                with growing(wanted) as part:
                    shutil.copyfile(file, part)
    except OSError:
        return


def _probes(folder: Path) -> Iterator[Path]:
    for library in folder.glob("??/*.so"):
        source = library.with_suffix(".cpp")
        if ".main." in library.name or not source.is_file():
            continue
        if library.stat().st_size <= PROBE_BYTES and source.stat().st_size <= SOURCE_BYTES:
            yield from (library, source)


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
    return int(sections) + int(size) * int(count) <= os.path.getsize(library)


def _precompiled_headers() -> Path:
    try:
        user = getpass.getuser()
    except (KeyError, ImportError, OSError):
        user = f"uid_{os.getuid()}"
    name = "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user)
    return Path(tempfile.gettempdir(), name, "precompiled_headers")


# Where torch keeps them for all programs of a person; servers give trials another place for temporary files later.
HEADERS = _precompiled_headers()
# What g++ begins one with until it has written all of it.
UNFINISHED = b"gpcWrite"


def drop_unfinished_headers(folder: Path = HEADERS, patience: float = 0.0) -> list[Path]:
    """Removes the precompiled headers that nobody is writing to their end any more; which ones they were.

    Whoever lets g++ write one holds torch's lock for it. What was just ended may hold it some moments longer: that is
    waited for with `patience`, in seconds.

    >>> drop_unfinished_headers(Path("no-such-folder"))
    []
    """
    dropped = []
    until = time.monotonic() + patience
    while unfinished := [path for path in folder.glob("*.gch") if _is_unfinished(path)]:
        for path in unfinished:
            lock = folder / "locks" / path.name.replace(".h.gch", ".lock")
            with contextlib.suppress(OSError), open(lock, "rb") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_unfinished(path):
                    path.unlink()
                    dropped.append(path)
        if time.monotonic() >= until:
            break
        time.sleep(POLL_SECONDS)
    return dropped


def _is_unfinished(header: Path) -> bool:
    try:
        with open(header, "rb") as file:
            return file.read(len(UNFINISHED)) in (UNFINISHED, b"")
    except OSError:
        return False
