"""Graph patterns of Inductor by the names that torch's source gives them, and each taken out by itself.

A pattern knows the function it was made from in one of three ways: as the handler that it calls, by a name given when
it was registered, or only as a variable of the check that it asks. Whether a match is used is decided by that check,
which may fail itself: so that is where a pattern is watched and left out.

Versions: entries and passes are those of 2.11 to 2.15; an entry that tells nothing is called by its class.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

Check = Callable[[Any], Any]


def pattern_name(entry: Any) -> str:
    """File and function of torch's source that a registered pattern comes from: `fuse_attention: _sfdp_pattern_5`."""
    function = _function(entry)
    if function is None:
        return str(getattr(entry, "pattern_name", None) or type(entry).__name__)
    module = str(getattr(function, "__module__", "") or "").rpartition(".")[2]
    name = str(getattr(function, "__name__", type(entry).__name__))
    made_by, inside, own = str(getattr(function, "__qualname__", name)).rpartition(".<locals>.")
    # A function made inside another is known by the one that made it, unless it was given a name.
    if inside and own == name:
        name = made_by.partition(".<locals>.")[0]
    return f"{module}: {name}" if module else name


def _function(entry: Any) -> Any:
    """What the pattern was written as: a function that handles a match, or one that is searched for."""
    handler = getattr(entry, "handler", None)
    if handler is None:
        handler = _variables(inspect.unwrap(entry.extra_check)).get("search_fn")
    while isinstance(handler, functools.partial):
        handler = handler.func
    return handler


def _variables(function: Any) -> dict[str, Any]:
    """What a function made inside another sees of it."""
    if not inspect.isfunction(function):
        return {}
    return dict(inspect.getclosurevars(function).nonlocals)


@contextlib.contextmanager
def checks_replaced(patterns: Any, make: Callable[[Any, Check], Check]) -> Iterator[None]:
    """Every pattern of a pass asks `make(entry, its check)` whether a match is used.

    Use: `with checks_replaced(a_pass, lambda entry, check: lambda match: False): a_pass_is_applied()`.
    """
    before = {id(entry): (entry, entry.extra_check) for entry in entries_of(patterns)}
    for entry, check in before.values():
        entry.extra_check = functools.wraps(check)(make(entry, check))
    try:
        yield
    finally:
        for entry, check in before.values():
            entry.extra_check = check


def entries_of(patterns: Any) -> list[Any]:
    """The registered patterns of a `PatternMatcherPass`, in order."""
    return [entry for entries in patterns.patterns.values() for entry in entries]
