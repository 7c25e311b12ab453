"""What a watched process reports of a failure, and what its death or its silence stands for: one type for all of them.

A process writes each as `failure-<number>.json` into its folder of the spool; whoever makes a case of it reads it
there (`cases/spool.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchsleuth.script_runtime.signature import Signature


@dataclass(frozen=True)
class RecordedCall:
    """The call of a compiled function as program text, in the forms that can be tried; or why it cannot be written.

    What a form holds says `watched/call_source.py`.
    """

    forms: tuple[Mapping[str, Any], ...] = ()
    why_none: str | None = None
    fullgraph: bool = False


@dataclass(frozen=True)
class WrongCall:
    """Where a whole call differs from eager: in words, in which (file, function, line), and by whose doing."""

    sentences: tuple[str, ...]
    place: tuple[str, str, int]
    component: str = "dynamo"


@dataclass(frozen=True)
class Failure:
    """One failure, at `time`, seen `count` times: of a graph whose record lies in the folder `record`, or of a call.

    Of a graph: the forms and values of its `inputs`, the number of the call of each graph that was under way, what was
    found wrong (`accuracy`), and after how many seconds it was given up (`timeout`). Of a call: the function, the
    line a person can change, the frames that may stay eager, how the program was started, the operator that failed and
    how it fails uncompiled.
    """

    signature: Signature
    traceback: str
    time: float
    count: int = 1
    record: str | None = None
    inputs: Mapping[str, Any] | None = None
    calls: tuple[tuple[str, int], ...] = ()
    accuracy: Mapping[str, Any] | None = None
    timeout: float | None = None
    function: str | None = None
    torch: str | None = None
    user_line: tuple[str, int, str] | None = None
    frames: tuple[tuple[str, int | None, str], ...] | None = None
    program: Mapping[str, Any] | None = None
    call: RecordedCall = field(default_factory=RecordedCall)
    op: str | None = None
    fails_in_eager: str | None = None
    capture: WrongCall | None = None
