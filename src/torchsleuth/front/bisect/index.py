"""Releases that a package index lists, what each would cost, and each installed into an environment of its own.

The page about torch is the simple index that pip and uv read, as JSON where the server speaks it (then sizes come with
it) and as HTML elsewhere (then a wheel's size is asked for by itself). Where an index does not answer, there is a list
of the releases known when this was written. `environments` builds. The release that is installed here is used as it is,
and costs nothing.
"""

from __future__ import annotations

import contextlib
import functools
import html.parser
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote, urljoin

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.releases import Range, is_name, public, release_named
from torchsleuth.front.bisect.environments import (
    HERE,
    CannotBuild,
    Recipe,
    build_environment,
    environments_folder,
    fits,
    python_of,
    usual_seconds,
)
from torchsleuth.front.bisect.releases import Offer

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
        try:
            package, version, _, _ = parse_wheel_filename(self.name)
        except InvalidWheelFilename:
            return ""
        return version.public if package == "torch" else ""

    @property
    def for_cpu(self) -> bool:
        """Whether it comes without the CUDA packages."""
        return "+cpu" in self.name or not sys.platform.startswith("linux")


def wheels_of(index: str) -> list[Wheel]:
    """Every wheel of torch that an index lists: `wheels_of("https://pypi.org/simple")`."""
    page = index.rstrip("/") + "/torch/"
    try:
        request = urllib.request.Request(page, headers={"Accept": _ACCEPT})
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            kind, text, address = answer.headers.get_content_type(), answer.read().decode(), answer.geturl()
        if kind.endswith("json"):
            listed = json.loads(text)["files"]
            wheels = [Wheel(f["filename"], urljoin(address, f["url"]), f.get("size")) for f in listed]
        else:
            links = _Links()
            links.feed(text)
            plain = [urljoin(address, link).partition("#")[0] for link in links.found]
            wheels = [Wheel(unquote(url.rpartition("/")[2]), url) for url in plain]
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


# torch's wheel on PyPI for Linux x86_64 (2.11 to 2.15: 0.53 to 0.54 GB), and the sum of the CUDA packages it brings (14
# wheels asked for on 2026-11-15, of the versions 2.13 wants or near them); the CPU wheel of 2.13.0 has 0.19 GB.
WHEEL_BYTES = 530_000_000
CUDA_BYTES = 2_200_000_000
CPU_WHEEL_BYTES = 200_000_000


class NoRelease(SleuthError):
    """The range holds nothing that could be tried."""


class IndexProvider:
    """The releases of an index: `IndexProvider().versions(range_of("2.11..2.15"))`.

    `index` is what the person gave; a range that ends at a nightly takes its releases from the usual index all the
    same. `say` hears what is worth knowing about the list.
    """

    def __init__(
        self,
        index: str | None = None,
        *,
        nightlies: str = NIGHTLIES,
        folder: Path | None = None,
        say: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._nightlies = index or nightlies
        self._releases: str | None = index
        self._folder = folder or environments_folder()
        self._say = say
        self._stop = threading.Event()
        self._asking = threading.Lock()
        self._wheels: dict[str, list[Wheel]] = {}

    @cached_property
    def installed(self) -> str | None:
        """The torch of this very Python."""
        try:
            return public(importlib.metadata.version("torch"))
        except importlib.metadata.PackageNotFoundError:
            return None

    @property
    def build_seconds(self) -> float:
        return usual_seconds(self._folder)

    def versions(self, wanted: Range) -> list[str]:
        """The releases of the range, oldest first, from the index or, where it is silent, from memory."""
        if wanted.has_nightlies and wanted.has_releases:
            self._releases = None
        names: list[str] = [self.installed] if self.installed else []
        if wanted.has_releases:
            names += self._listed_releases()
        if wanted.has_nightlies:
            names += self._listed_nightlies()
        found = wanted.chosen_of(names)
        if not found:
            raise NoRelease(
                f"The index lists no torch in {wanted.text} (the newest is "
                f"{max(names, key=release_named, default='none')}); give another range, or another --index-url."
            )
        return found

    def offer(self, version: str) -> Offer:
        """What a release costs: the size of its wheel, and of the CUDA packages that come with it on Linux."""
        if version == self.installed or python_of(self._recipe(version), self._folder) is not None:
            return Offer(at_hand=True)
        listed = self._of_index(self._source(version))
        if listed is None:
            return Offer(at_hand=False, bytes=self._guess(self._source(version)), exact=False)
        fitting = [w for w in listed if w.version == version and fits(w.name)]
        if not fitting:
            return Offer(at_hand=False, refused=f"the index has no wheel of it for {HERE}")
        size = size_of(fitting[0])
        if size is None:
            return Offer(at_hand=False, bytes=self._guess(fitting[0].name), exact=False)
        cuda = 0 if fitting[0].for_cpu else CUDA_BYTES
        return Offer(at_hand=False, bytes=size + cuda, exact=not cuda)

    def python_for(self, version: str, deadline: float) -> str:
        """The Python that has this release."""
        if version == self.installed:
            return sys.executable
        recipe = self._recipe(version)
        if (ready := python_of(recipe, self._folder)) is not None:
            return ready
        offer = self.offer(version)
        if offer.refused:
            raise CannotBuild(offer.refused)
        return build_environment(
            recipe, self._folder, deadline=deadline, stop=self._stop, expected_bytes=offer.bytes
        )

    def stop(self) -> None:
        """Ends what is being built."""
        self._stop.set()

    @cached_property
    def _usual(self) -> str:
        return usual_index()

    def _recipe(self, version: str) -> Recipe:
        night = release_named(version).is_devrelease
        return Recipe(version, self._nightlies if night else self._releases)

    def _source(self, version: str) -> str:
        return self._recipe(version).index or self._usual

    def _listed_releases(self) -> list[str]:
        wheels = self._of_index(self._releases or self._usual)
        if wheels is None:
            self._say("the releases known when this torchsleuth was written are used, with estimated sizes")
            return list(KNOWN)
        return [w.version for w in wheels]

    def _listed_nightlies(self) -> list[str]:
        wheels = self._of_index(self._nightlies)
        if wheels is None:
            raise NoRelease(
                "The index of nightlies does not answer, so there is no list of them; see to the network, "
                "give another --index-url, or name them with --releases 2.14.0.dev20261001,…"
            )
        return [w.version for w in wheels]

    def _of_index(self, source: str) -> list[Wheel] | None:
        """The wheels that an index lists, asked once; None where it is silent."""
        with self._asking:
            if source not in self._wheels:
                try:
                    self._wheels[source] = wheels_of(source)
                except IndexSilent as why:
                    self._say(f"the index gave no list of torch ({why})")
                    self._wheels[source] = []
            return self._wheels[source] or None

    def _guess(self, text: str) -> int:
        plain = "cpu" in text or not sys.platform.startswith("linux")
        return CPU_WHEEL_BYTES if plain else WHEEL_BYTES + CUDA_BYTES


def usual_index() -> str:
    """The index that pip or uv would ask: of the environment, of pip's settings, else PyPI."""
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        if os.environ.get(name):
            return os.environ[name]
    asked = subprocess.run(
        [sys.executable, "-P", "-m", "pip", "config", "get", "global.index-url"],
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip() if asked.returncode == 0 and asked.stdout.strip() else PYPI


def installed_cuda() -> str | None:
    """The CUDA version that the torch of this Python was built for, such as "13.0", read without importing it."""
    found = importlib.util.find_spec("torch")
    for place in (found and found.submodule_search_locations) or ():
        with contextlib.suppress(OSError):
            text = Path(place, "version.py").read_text(encoding="utf-8")
            if named := re.search(r"^cuda\b[^=]*= *['\"]([\d.]+)", text, re.MULTILINE):
                return named[1]
    return None


def nightly_index(cuda: str | None) -> str:
    """torch's own nightlies for a CUDA version such as "13.0", or for the CPU: `nightly_index(None)`."""
    return NIGHTLIES if cuda is None else NIGHTLIES.rpartition("/")[0] + "/cu" + cuda.replace(".", "")
