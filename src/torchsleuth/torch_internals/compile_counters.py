"""What Dynamo counts while it compiles: graph breaks by their reason, and each compilation with why it came again.

Versions: 2.11 to 2.13 keep both; where a version keeps neither, `UnsupportedTorch` says so.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch

from torchsleuth.torch_internals.hooks import UnsupportedTorch


@dataclass(frozen=True)
class Compilation:
    """One function that Dynamo compiled; `again` is the guard that failed where it had been compiled before."""

    function: str
    file: str
    line: int
    again: str | None


@dataclass(frozen=True)
class Counted:
    """What was counted up to a moment; hold one from before to know what is new."""

    breaks: dict[str, int]
    compiled: tuple[Any, ...]


def counted_so_far() -> Counted:
    """The counters as they stand: `before = counted_so_far()`."""
    utils: Any = importlib.import_module("torch._dynamo.utils")
    try:
        return Counted(dict(utils.counters["graph_break"]), tuple(utils.get_compilation_metrics()))
    except AttributeError as error:
        raise UnsupportedTorch(
            f"torch {torch.__version__} does not count its compilations ({error})"
        ) from error


def graph_breaks_since(before: Counted) -> list[str]:
    """The first line of each reason for a graph break, once for each break since then."""
    now = counted_so_far().breaks
    return [
        reason.strip().splitlines()[0] if reason.strip() else "no reason given"
        for reason, times in now.items()
        for _ in range(times - before.breaks.get(reason, 0))
    ]


def compilations_since(before: Counted) -> list[Compilation]:
    """What Dynamo has compiled since then; torch remembers the last 64."""
    known = {id(each) for each in before.compiled}
    return [
        Compilation(
            str(each.co_name), str(each.co_filename), int(each.co_firstlineno or 0), each.recompile_reason
        )
        for each in counted_so_far().compiled
        if id(each) not in known
    ]


def has_compiled() -> bool:
    """Whether Dynamo has looked at any function of this process since it was last reset."""
    utils: Any = importlib.import_module("torch._dynamo.utils")
    convert_frame: Any = importlib.import_module("torch._dynamo.convert_frame")
    tried = getattr(convert_frame, "FRAME_COMPILE_COUNTER", None)
    return bool(tried) or any(utils.counters.values())
