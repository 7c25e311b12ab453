"""The options of a backend: those it knows are taken, the others are warned about and ignored.

They arrive in three ways: `torch.compile(options={...})`, `torch.compile(mode=...)`, and `functools.partial`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any


class UnknownOption(UserWarning):
    """A backend was given something it does not know."""


def options_of(backend: str, given: Mapping[str, Any], known: Sequence[str] = ()) -> dict[str, Any]:
    """What a backend was given and knows.

    >>> options_of("sleuth_eager", {"options": {"ops": "all"}}, known=("ops",))
    {'ops': 'all'}
    """
    flat = {name: value for name, value in given.items() if name != "options"}
    flat.update(given.get("options") or {})
    # A string is one of torch.compile's own modes, which only Inductor knows.
    taken = {n: v for n, v in flat.items() if n in known and not (n == "mode" and isinstance(v, str))}
    ignored = {name: value for name, value in flat.items() if name not in taken}
    if ignored:
        listed = ", ".join(f"{name}={value!r}" for name, value in sorted(ignored.items()))
        knows = f"it knows {', '.join(known)}" if known else "it has no options"
        warnings.warn(f"{backend} ignores {listed}: {knows}.", UnknownOption, stacklevel=3)
    return taken
