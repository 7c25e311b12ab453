"""Our work in the user's process warns nobody."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

_SILENCE: Any = ("ignore", None, Warning, None, 0)


@contextlib.contextmanager
def unwarned() -> Iterator[None]:
    """No warning is shown inside, and none that the program gives afterwards is shown once more or once less.

    `warnings.catch_warnings` makes Python forget which warnings it has shown already, and a warning that is caught
    would count as shown: the filter is put in without telling.

    >>> with unwarned():
    ...     warnings.warn("nobody hears this")
    """
    filters: Any = warnings.filters
    filters.insert(0, _SILENCE)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            filters.remove(_SILENCE)
