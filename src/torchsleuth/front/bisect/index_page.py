"""The page about torch on a package index, read: the wheels it lists, for which Python and machine, and how large.

It is the simple index that pip and uv read, as JSON where the server speaks it (then sizes come with it) and as HTML
elsewhere (then a wheel's size is asked for by itself). Nothing is installed here; `index_provider` does that with what
was read. Where an index does not answer, there is a list of the releases known when this was written.
"""

from __future__ import annotations

import functools
import html.parser
import json
import platform
import re
import sys
import sysconfig
import urllib.error
import urllib.request
from dataclasses import dataclass
from urllib.parse import unquote, urljoin

from torchsleuth.front.bisect.release_names import is_name, public

PYPI = "https://pypi.org/simple"
NIGHTLIES = "https://download.pytorch.org/whl/nightly/cpu"
# As PyPI listed them on 2026-11-15.
KNOWN = (
    "2.6.0", "2.7.0", "2.7.1", "2.8.0", "2.9.0", "2.9.1", "2.10.0",
    "2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.14.0", "2.14.1", "2.15.0",
)  # fmt: skip
# The page of torch has 0.4 MB on PyPI; a server that has not sent it by then will not.
ANSWER_SECONDS = 30.0
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.2"
_WHEEL = re.compile(r"torch-([^-]+)(?:-\d[^-]*)?-([^-]+)-([^-]+)-([^-]+)\.whl")


class IndexSilent(Exception):
    """The index gave no list of torch; says why."""


@dataclass(frozen=True)
class Wheel:
    """One file of the index; `bytes` is None where the index does not tell."""

    name: str
    url: str
    bytes: int | None = None

    @property
    def version(self) -> str:
        """The release without how it was built: `2.13.0`."""
        match = _WHEEL.fullmatch(self.name)
        return public(match[1]) if match else ""

    @property
    def for_cpu(self) -> bool:
        """Whether it comes without the CUDA packages."""
        return "+cpu" in self.name or not sys.platform.startswith("linux")


@dataclass(frozen=True)
class Target:
    """The Python and machine that wheels must fit: `Target("cp311", "cp311", "linux", "x86_64")`."""

    python: str
    abi: str
    system: str
    machine: str

    def fits(self, wheel: Wheel) -> bool:
        """Whether the wheel can be installed here, by its name."""
        match = _WHEEL.fullmatch(wheel.name)
        if match is None:
            return False
        pythons, abis, places = (set(match[i].split(".")) for i in (2, 3, 4))
        own = self.python in pythons and self.abi in abis
        return (own or self._stable(pythons, abis)) and any(self._place(p) for p in places)

    def _stable(self, pythons: set[str], abis: set[str]) -> bool:
        """Built for this Python's stable interface, or for any Python 3."""
        minors = [int(p[3:]) for p in pythons if re.fullmatch(r"cp3\d+", p)]
        stable = "abi3" in abis and self.abi == self.python and bool(minors)
        return (stable and min(minors) <= int(self.python[3:])) or ("none" in abis and "py3" in pythons)

    def _place(self, place: str) -> bool:
        if place == "any":
            return True
        if self.system == "darwin":
            return place.startswith("macosx") and place.endswith((self.machine, "universal2"))
        if self.system == "win32":
            return place.startswith("win") and place.endswith(self.machine)
        return place.startswith(("manylinux", "linux")) and place.endswith(self.machine)

    def __str__(self) -> str:
        return f"Python {self.abi[2:3]}.{self.abi[3:]} on {self.system} {self.machine}"


def this_target() -> Target:
    """The Python that runs this, on this machine."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    free = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    return Target(python, python + free, sys.platform, platform.machine().lower())


def wheels_of(index: str) -> list[Wheel]:
    """Every wheel of torch that an index lists: `wheels_of("https://pypi.org/simple")`."""
    page = index.rstrip("/") + "/torch/"
    try:
        request = urllib.request.Request(page, headers={"Accept": _ACCEPT})
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            kind, text, address = answer.headers.get_content_type(), answer.read().decode(), answer.geturl()
        wheels = _from_json(text, address) if kind.endswith("json") else _from_html(text, address)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise IndexSilent(_reason(error)) from error
    found = [w for w in wheels if is_name(w.version)]
    if not found:
        raise IndexSilent("it lists no wheel of torch")
    return found


@functools.cache
def size_of(wheel: Wheel) -> int | None:
    """Bytes to download for a wheel, asked of the server where the index did not tell; None where nobody does."""
    if wheel.bytes is not None:
        return wheel.bytes
    try:
        request = urllib.request.Request(wheel.url, method="HEAD")
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, ValueError, TypeError):
        return None


def _from_json(text: str, address: str) -> list[Wheel]:
    return [
        Wheel(f["filename"], urljoin(address, f["url"]), f.get("size")) for f in json.loads(text)["files"]
    ]


def _from_html(text: str, address: str) -> list[Wheel]:
    links = _Links()
    links.feed(text)
    plain = [urljoin(address, link).partition("#")[0] for link in links.found]
    return [Wheel(unquote(url.rpartition("/")[2]), url) for url in plain]


class _Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"it answered with status {error.code}"
    if isinstance(error, urllib.error.URLError):
        return f"it cannot be reached: {error.reason}"
    return f"its answer cannot be read: {error}" if str(error) else "its answer cannot be read"
