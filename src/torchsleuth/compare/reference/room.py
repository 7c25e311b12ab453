"""How much memory a check may take: what the program itself needs once more, and a gibibyte.

The peak that torch and the system report holds our own share as well. So the peak is read before a check and after
it: only where it has risen in between was that the program.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchsleuth.compare.reference.cloning import tensors_in

EXTRA = 1 << 30
"""Bytes beyond twice the program's own peak."""

SPARE = 256 << 20
"""Bytes of unused blocks that a check may leave to the program."""

LEAST = 128 << 20
"""Bytes a check may always take: below that, pieces would cost more time than they spare memory."""


@dataclass
class _Peak:
    program: int = 0
    after_check: int = 0


_peaks: dict[torch.device, _Peak] = {}
_checking: set[torch.device] = set()


@contextlib.contextmanager
def memory_counted_apart(inputs: Any) -> Iterator[None]:
    """What is allocated inside is a check's, not the program's, on the devices of these inputs and on the CPU."""
    devices = {torch.device("cpu"), *(t.device for t in tensors_in(inputs) if t.device.type == "cuda")}
    # A graph that is checked inside another's check, in whatever thread: the peak is the outer check's.
    devices -= _checking
    _checking.update(devices)
    for device in devices:
        peak = _peaks.setdefault(device, _Peak())
        now = _peak_bytes(device)
        if now > peak.after_check:
            peak.program = now
    try:
        yield
    finally:
        _checking.difference_update(devices)
        for device in devices:
            _peaks[device].after_check = _peak_bytes(device)
            if device.type == "cuda":
                _give_back(device)


def _give_back(device: torch.device) -> None:
    """Blocks that only the check needed would stay with the process, and the program may need other sizes."""
    if _unused(device) > SPARE:
        with contextlib.suppress(RuntimeError):  # while a CUDA graph is being captured, nothing may be freed
            torch.cuda.empty_cache()


def room(device: torch.device) -> int:
    """Bytes that a check may still take on a device.

    >>> room(torch.device("cpu")) >= LEAST
    True
    """
    known = _peaks.get(device)
    program = known.program if known is not None else _peak_bytes(device)
    left = 2 * program + EXTRA - _bytes_now(device)
    if device.type == "cuda":
        left = min(left, torch.cuda.mem_get_info(device)[0] + _unused(device))
    return max(LEAST, left)


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Kibibytes on Linux, bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _bytes_now(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):  # no such file outside Linux
        return _peak_bytes(device)
    return pages * resource.getpagesize()


def _unused(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
