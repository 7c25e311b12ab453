"""What Inductor finds out about the C++ compiler before its first kernel, kept for the next fresh cache.

In an empty cache it compiles half a dozen tiny programs to learn the vector instructions of this machine: 7 of the
11 seconds a first compile takes here. They contain nothing of the graph, and are named by the hash of their text and
flags, so handing them to another fresh cache is safe; kernels are never handed on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from torchsleuth.core.protocol.files import growing

# The probes are below 25 KB; a kernel's library carries `.main.` in its name and starts at twice that.
PROBE_BYTES = 40 << 10
SOURCE_BYTES = 2 << 10


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
