"""Python environments with one torch each, kept in the user's cache folder.

An environment grows aside and is renamed into place when its torch has been imported once, so one that is there is
whole; a lock per environment keeps two processes from building the same one. uv builds where it is on PATH, else
`venv` and pip. Only the environment's Python is used later, and that one may be moved.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import importlib.machinery
import json
import os
import platform
import re
import shutil
import site
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.tags import sys_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.releases import public, release_named
from torchsleuth.core.processes.child import Child
from torchsleuth.core.protocol.files import write_whole

try:
    import fcntl
except ImportError:  # on Windows two processes may build one environment twice, and the first one stays
    fcntl = None  # type: ignore[assignment]

READY = "torchsleuth.json"
POLL_SECONDS = 0.1
# The 0.19 GB wheel of torch 2.13.0 for the CPU unpacks to 0.70 GB, and both are on the disk for a while.
ROOM_PER_BYTE = 4.7
_NO_ROOM = re.compile(r"no space left on device|disk quota exceeded|not enough space", re.IGNORECASE)
# "from versions: none" is all that pip says where it was told not to try again: then no other release is there either.
_NO_NETWORK = re.compile(
    r"name resolution|name or service not known|failed to establish a new connection|network is unreachable"
    r"|dns error|connection refused|getaddrinfo failed|proxyerror|tls handshake|error sending request"
    r"|connection broken|failed to fetch|from versions: none|not found in the package registry",
    re.IGNORECASE,
)
_NO_WHEEL = re.compile(
    r"no matching distribution|no solution found|no wheels? with a matching", re.IGNORECASE
)
_CHECK = "import torch; print(torch.__version__)"
# What else a script or program imports comes from where torchsleuth runs; the torch of the environment goes first.
BESIDE_VARIABLE = "SLEUTH_BESIDE_TORCH"
_BESIDE = (
    "import os, site; "
    f"list(map(site.addsitedir, filter(None, os.environ.get({BESIDE_VARIABLE!r}, '').split(os.pathsep))))\n"
)


class NoBuilder(SleuthError):
    """Neither uv nor pip is here."""


class NoRoom(SleuthError):
    """The disk of the environments is full."""


class NoNetwork(SleuthError):
    """The index cannot be reached."""


class CannotBuild(Exception):
    """There is no environment with this release; says why. The search goes on without it."""


class Stopped(Exception):
    """The search was stopped, or its time is over, while an environment was built."""


def fits(wheel: str) -> bool:
    """Whether a wheel can be installed in the Python that runs this, by its name."""
    try:
        return not _TAGS.isdisjoint(parse_wheel_filename(wheel)[3])
    except InvalidWheelFilename:
        return False


_TAGS = frozenset(sys_tags())
HERE = (
    f"Python {sys.version_info.major}.{sys.version_info.minor} on {sys.platform} {platform.machine().lower()}"
)


@dataclass(frozen=True)
class Recipe:
    """What one environment holds, and where it comes from; `index` is None for that of pip's or uv's settings."""

    version: str
    index: str | None = None

    @property
    def folder_name(self) -> str:
        """Different for whatever makes a different environment: `torch-2.12.0-cp311-linux-x86_64-default`."""
        source = hashlib.sha256(self.index.encode()).hexdigest()[:8] if self.index else "default"
        own = next(sys_tags())
        return f"torch-{self.version}-{own.abi}-{sys.platform}-{platform.machine().lower()}-{source}"


def environments_folder() -> Path:
    """Where environments are kept: $XDG_CACHE_HOME/torchsleuth/environments."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "torchsleuth" / "environments"


def room_there(folder: Path) -> int:
    """Bytes that are free on the disk of a folder, which need not be there yet: `room_there(environments_folder())`."""
    return shutil.disk_usage(next(each for each in (folder, *folder.parents) if each.exists())).free


def python_of(recipe: Recipe, folder: Path) -> str | None:
    """The Python of an environment that is there and whole, else None."""
    place = folder / recipe.folder_name
    python = _python_in(place)
    if not (place / READY).is_file() or not python.exists():
        return None
    for packages in place.glob("lib/python*/site-packages"):
        beside = packages / "torchsleuth_beside.pth"
        if not beside.exists():
            write_whole(beside, _BESIDE)
    return str(python)


def beside_torch() -> dict[str, str]:
    """The variable with which the Python of an environment finds the packages of this one, its own torch first."""
    return {BESIDE_VARIABLE: os.pathsep.join(site.getsitepackages())}


def build_environment(
    recipe: Recipe, folder: Path, *, deadline: float, stop: threading.Event, expected_bytes: int = 0
) -> str:
    """The Python of the environment, which is built where it is not there yet.

    Raises `CannotBuild` for this release alone, a `SleuthError` where no other could be built either, `Stopped`.
    """
    with _explained(folder), _locked(folder / f".{recipe.folder_name}.lock", deadline, stop):
        if (python := python_of(recipe, folder)) is not None:
            return python
        for left in folder.glob(
            f".{recipe.folder_name}.building-*"
        ):  # by a builder that died: one is at work here
            shutil.rmtree(left, ignore_errors=True)
        free, wanted = shutil.disk_usage(folder).free, expected_bytes * ROOM_PER_BYTE
        if free < wanted:
            raise NoRoom(_no_room_sentence(folder, f"{free / 1e9:.1f} of {wanted / 1e9:.1f} GB"))
        growing = folder / f".{recipe.folder_name}.building-{os.getpid()}"
        try:
            _fill(recipe, growing, deadline, stop)
            shutil.rmtree(folder / recipe.folder_name, ignore_errors=True)
            os.rename(growing, folder / recipe.folder_name)
        finally:
            shutil.rmtree(growing, ignore_errors=True)
        return python_of(recipe, folder) or ""


def usual_seconds(folder: Path) -> float:
    """How long building one took at most of late; where none was built, as measured once (two cores, 2026-11-19)."""
    seen = []
    for ready in folder.glob(f"torch-*/{READY}"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            seen.append(float(json.loads(ready.read_text(encoding="utf-8"))["seconds"]))
    return max(seen, default=90.0)


def builder() -> str:
    """What environments are built with here: `uv`, or `pip` of this Python."""
    if shutil.which("uv"):
        return "uv"
    # On the path alone: setuptools takes whoever asks its finder for pip for pip, and cannot be loaded after that.
    find = importlib.machinery.PathFinder.find_spec
    if find("pip") and find("venv"):
        return "pip"
    raise NoBuilder(
        "There is neither uv on PATH nor pip in this Python, so no environment with another torch can be built; "
        "install one of them, for example with `python -m ensurepip`."
    )


def _fill(recipe: Recipe, place: Path, deadline: float, stop: threading.Event) -> None:
    started = time.monotonic()
    run = functools.partial(_run, recipe=recipe, deadline=deadline, stop=stop)
    python = str(_python_in(place))
    what = [f"torch=={recipe.version}"]
    source = ["--index-url", recipe.index] if recipe.index else []
    if builder() == "uv":
        run(["uv", "venv", "--quiet", "--no-project", "--python", sys.executable, str(place)])
        early = ["--prerelease", "allow"] if release_named(recipe.version).is_prerelease else []
        run(["uv", "pip", "install", "--quiet", "--python", python, *early, *source, *what])
    else:
        run([sys.executable, "-P", "-m", "venv", "--without-pip", str(place)])
        pip = [sys.executable, "-P", "-m", "pip", "--python", python, "--disable-pip-version-check"]
        run([*pip, "install", "--quiet", "--no-input", "--only-binary", "torch", *source, *what])
    version = run([python, "-P", "-c", _CHECK]).strip().rpartition("\n")[2]
    if public(version) != recipe.version:
        raise CannotBuild(
            f"its environment imports torch {version} instead; see that PYTHONPATH names no other torch"
        )
    about = {"torch": version, "made": time.time(), "seconds": round(time.monotonic() - started, 1)}
    (place / READY).write_text(json.dumps(about), encoding="utf-8")


def _run(command: Sequence[str], recipe: Recipe, deadline: float, stop: threading.Event) -> str:
    """Runs one step in a session of its own; its stdout. A failure becomes the error it stands for."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with Child(command, stdout=out, stderr=err) as child:
            while child.poll() is None:
                if stop.wait(POLL_SECONDS) or time.monotonic() > deadline:
                    raise Stopped
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", errors="replace"))
    if child.wait():
        raise _failure(texts[1] or texts[0], recipe)
    return texts[0]


def _failure(text: str, recipe: Recipe) -> Exception:
    """The error that the words of pip, uv or an import stand for."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if _NO_ROOM.search(text):
        return NoRoom(_no_room_sentence(environments_folder()))
    if _NO_NETWORK.search(text):
        return NoNetwork(
            f"torch {recipe.version} could not be downloaded, because the index does not answer or has no torch for "
            f"{HERE}; see to the network or give --index-url, and the same command goes on."
        )
    if _NO_WHEEL.search(text):
        return CannotBuild(f"the index has no wheel of it for {HERE}")
    errors = [line for line in lines if re.match(r"error|\w*Error\b", line, re.IGNORECASE)] or lines
    return CannotBuild(f"it could not be installed: {(errors or ['no reason was given'])[-1][:200]}")


def _no_room_sentence(folder: Path, how_much: str = "") -> str:
    seen = f" ({how_much} are free)" if how_much else ""
    return (
        f"No room on the disk of {folder} for another torch{seen}; delete environments there, "
        "or set XDG_CACHE_HOME to a larger disk, and the same command goes on."
    )


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as failure:
        if failure.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoRoom(_no_room_sentence(folder)) from failure
        raise NoRoom(
            f"Environments cannot be kept in {folder} ({failure.strerror or failure}); "
            "set XDG_CACHE_HOME to a folder that can be written."
        ) from failure


@contextlib.contextmanager
def _locked(path: Path, deadline: float, stop: threading.Event) -> Iterator[None]:
    """One builder per environment; the kernel frees the lock of a process that dies."""
    if fcntl is None:
        yield
        return
    with open(path, "w", encoding="ascii") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if stop.wait(POLL_SECONDS) or time.monotonic() > deadline:
                    raise Stopped from None
        yield


def _python_in(place: Path) -> Path:
    return place / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
