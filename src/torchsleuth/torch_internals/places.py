"""A function of ours in the place of one of torch's, and out again: what every hook and every switch rests on.

A place is a module, a class in it (or ""), and a name; it is looked for there and nowhere else. What a version lacks is
left alone, or said at once where nothing works without it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch


class UnsupportedTorch(RuntimeError):
    """This torch lacks something torchsleuth hooks into."""


class Replaced:
    """Puts back what was there when it is called, or left as a context; `there` says whether anything was."""

    def __init__(self, owner: Any, name: str, original: Any) -> None:
        self.there = original is not None
        self._put_back = functools.partial(setattr, owner, name, original)

    def __call__(self) -> None:
        if self.there:
            self._put_back()

    def __enter__(self) -> Replaced:
        return self

    def __exit__(self, *_: object) -> None:
        self()


Undo = Callable[[], None]


def all_of(undo: Iterable[Undo]) -> Undo:
    """Puts back what several put in: `all_of([hook_one(), hook_other()])()`."""
    every = list(undo)
    return lambda: [each() for each in every].clear()


def replaced(
    module: str, owner: str, name: str, make: Callable[[Any], Any], *, needed: str | None = None
) -> Replaced:
    """Puts `make(original)` in the place of what torch has there.

    Where there is nothing, that is all; or `UnsupportedTorch` with what is `needed`, `{}` being torch's version.

    >>> with replaced("torch._dynamo", "", "reset", lambda original: print):
    ...     torch._dynamo.reset("put back later")
    put back later
    """
    found: Any = importlib.import_module(module)
    where = getattr(found, owner, None) if owner else found
    original = None if where is None else vars(where).get(name)
    if original is None:
        if needed is not None:
            raise UnsupportedTorch(needed.format(torch.__version__))
        return Replaced(where, name, None)
    made = make(original)
    if inspect.isfunction(made):
        made = functools.wraps(original)(made)
    setattr(where, name, made)
    return Replaced(where, name, original)
