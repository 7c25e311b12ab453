"""Functions of a program that run as if other lines stood in their file, without a change to the file.

Python swaps the code of a function that is there, so this waits for the first call of each compiled function: by then
what it calls is defined. Whole calls are compared with the text as it was, which is why the swap can be undone.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from torchsleuth.core.changes import with_lines

Lines = tuple[str, int, int, str]  # file, first and last line, and what stands there instead
# Functions that run with other code, and the code they had.
_swapped: list[tuple[FunctionType, CodeType]] = []
_silent = False


def before_calls(wanted: Sequence[Lines]) -> Callable[[Any], None]:
    """What to do before each call of a compiled function: puts the code in, where the function was not seen before."""
    global _silent
    _silent = any("is_compiling()" in text for *_, text in wanted)
    others = {os.path.abspath(file): _changed(file, wanted) for file in {file for file, *_ in wanted}}
    seen: set[int] = set()

    def begin(call: Any) -> None:
        if id(call.function) not in seen:
            seen.add(id(call.function))
            _swap(others)

    return begin


def _changed(file: str, wanted: Sequence[Lines]) -> dict[CodeType, CodeType]:
    """The functions of a file that are others with what is wanted there, by what they are without it."""
    source = changed = Path(file).read_text(encoding="utf-8")
    for _, first, last, text in sorted((each for each in wanted if each[0] == file), reverse=True):
        changed = with_lines(changed, first, last, text)
    return dict(_pairs(*(compile(text, file, "exec", dont_inherit=True) for text in (source, changed))))


def _pairs(one: CodeType, other: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The functions of two texts that differ, those inside of others as well."""
    mine, theirs = ([c for c in code.co_consts if isinstance(c, CodeType)] for code in (one, other))
    for name in dict.fromkeys(code.co_name for code in mine):
        for first, second in zip(*([c for c in codes if c.co_name == name] for codes in (mine, theirs))):
            if first != second:
                yield first, second
                yield from _pairs(first, second)


def _swap(others: dict[str, dict[CodeType, CodeType]]) -> None:
    for function in gc.get_objects():
        if type(function) is not FunctionType:  # nothing is asked of other objects, which may run code then
            continue
        before = function.__code__
        after = others.get(os.path.abspath(before.co_filename), {}).get(before)
        if after is not None and after.co_freevars == before.co_freevars:
            function.__code__ = after
            _swapped.append((function, before))


@contextlib.contextmanager
def as_it_was() -> Iterator[None]:
    """Inside, the program runs as its file says."""
    now = [function.__code__ for function, _ in _swapped]
    for function, code in _swapped:
        function.__code__ = code
    try:
        yield
    finally:
        for (function, _), code in zip(_swapped, now):
            function.__code__ = code


def prints_less() -> bool:
    """Whether what stands there now means to print less when it is compiled."""
    return _silent


def end_if_not_compared(why: str) -> None:
    """Ends the process where a call of rewritten functions could not be compared: it would be taken for equal."""
    if _swapped:
        sys.stderr.write(f"torchsleuth: cannot override: what was rewritten cannot be compared: {why}\n")
        sys.stderr.flush()
        os._exit(2)
