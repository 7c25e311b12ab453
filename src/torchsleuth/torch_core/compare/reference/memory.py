"""How much memory a check may take: what the program itself needs once more, and a gibibyte.

The peak that torch and the system report is the program's alone only until we first take something. From then on the
program counts as large as it was at its largest when a check began, less the copies that we held.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from torchsleuth.torch_core.compare.reference.cloning import memory_of, tensors_in

EXTRA = 1 << 30
"""Bytes beyond twice the program's own peak."""

BLOCKS = 0.85
"""Of the bytes that a process may hold, what tensors may take: the rest is lost between the allocator's blocks."""

SPARE = 256 << 20
"""Bytes of unused blocks that a check may leave to the program."""

LEAST = 128 << 20
"""Bytes a check may always take: below that, pieces would cost more time than they spare memory."""


RETAINED = 64 << 20
"""Bytes that a check may still hold at its end: graphs refer to themselves and wait for a collection."""

UNUSED = 32 << 20
"""Bytes of unused blocks that are worth giving back: that waits for the device, and blocks are dear to take anew."""

_program: dict[torch.device, int] = {}
_copied: dict[torch.device, int] = {}
_holders: Counter[tuple[torch.device, int]] = Counter()
_checking: set[torch.device] = set()
_elsewhere: dict[torch.device, int] = {}


@contextlib.contextmanager
def copies_counted(inputs: Any, copy: Callable[[Any], Any]) -> Iterator[Any]:
    """Copies a call's inputs, and around the call: the copies are ours, whatever the program takes is not."""
    for device in _bytes_by_device(inputs):
        _note_program(device)
    copies = copy(inputs)
    memory = {(t.device, memory_of(t)): t for t in tensors_in(copies) if memory_of(t)}
    sizes = {place: tensor.untyped_storage().nbytes() for place, tensor in memory.items()}
    for place, size in sizes.items():
        _holders[place] += 1
        _copied[place[0]] = _copied.get(place[0], 0) + (size if _holders[place] == 1 else 0)
    try:
        yield copies
    finally:
        for place, size in sizes.items():
            _holders[place] -= 1
            _copied[place[0]] -= 0 if _holders[place] else size


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def note_run(copies: Any) -> None:
    """The program has run as it does without us, but that copies as large as these were held beside it."""
    for device, size in _bytes_by_device(copies).items():
        if device.type == "cuda":
            _program[device] = max(_program.get(device, 0), _peak_bytes(device) - size)


def _bytes_by_device(tree: Any) -> dict[torch.device, int]:
    sizes = {torch.device("cpu"): 0}
    for tensor in tensors_in(tree):
        if tensor.device.type in ("cpu", "cuda"):
            sizes[tensor.device] = sizes.get(tensor.device, 0) + _bytes_of(tensor)
    return sizes


@contextlib.contextmanager
def memory_beside(run: Callable[[], Any], inputs: Any) -> Iterator[None]:
    """What is allocated inside is ours, beside a program that does nothing but `run`: on a device it runs once before.

    Used as `with memory_beside(lambda: compiled(inputs), inputs): …`.
    """
    if any(tensor.device.type == "cuda" for tensor in tensors_in(inputs)):
        run()
        note_run(inputs)
    with memory_counted_apart(inputs):
        del inputs  # which may be all that holds them
        yield


@contextlib.contextmanager
def memory_counted_apart(inputs: Any) -> Iterator[None]:
    """What is allocated inside is a check's, not the program's, on the devices of these inputs and on the CPU."""
    devices = {torch.device("cpu"), *(t.device for t in tensors_in(inputs) if t.device.type == "cuda")}
    del inputs
    for device in devices:
        _note_program(device)
    # A graph that is checked inside another's check, in whatever thread: what is taken is the outer check's.
    devices -= _checking
    _checking.update(devices)
    before = {device: _bytes_now(device) for device in devices}
    try:
        yield
    finally:
        _checking.difference_update(devices)
        for device in devices:
            if device.type == "cuda":
                if _bytes_now(device) > before[device] + RETAINED:
                    gc.collect()
                _give_back(device)


def program_bytes(tree: Any) -> dict[str, int]:
    """What this program takes at most of the devices of these values and of main memory: `program_bytes([x])`."""
    return {str(device): _program.get(device) or _peak_bytes(device) for device in _bytes_by_device(tree)}


def held_now(tree: Any) -> dict[str, int]:
    """What this process holds of each device of these values, our copies among it, less blocks that nobody uses."""
    devices = [device for device in _bytes_by_device(tree) if device.type == "cuda"]
    for device in devices:
        _give_back(device)
    return {str(device): torch.cuda.memory_reserved(device) for device in devices}


@contextlib.contextmanager
def beside_program(memory: dict[str, int], held: dict[str, int]) -> Iterator[None]:
    """In a process that checks for another one, which by itself takes so much of each device at most and holds so much
    now: what is left is twice the former and a gibibyte, less the latter and what is held here."""
    given = {torch.device(name): size for name, size in memory.items()}
    _program.update(given)
    _elsewhere.update({device: held.get(str(device), size) for device, size in given.items()})
    _checking.update(given)
    for device, size in given.items():
        if device.type == "cuda":
            most = max(LEAST, 2 * size + EXTRA - _elsewhere[device])
            share = most / torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, share), device)
    try:
        yield
    finally:
        _checking.difference_update(given)
        gc.collect()
        if any(device.type == "cuda" for device in given):
            _empty_cache()


def _note_program(device: torch.device) -> None:
    if device in _checking:
        return
    if device not in _program:
        _program[device] = _peak_bytes(device)
    _program[device] = max(_program[device], _bytes_now(device) - _copied.get(device, 0))


def trim(device: torch.device) -> None:
    """Gives unused blocks back where the process holds nearly all that it may while a check is under way.

    The allocator does so only where the device itself is full. Used as `trim(value.device)` between two steps.
    """
    if device.type != "cuda" or device not in _checking:
        return
    limit = 2 * _program[device] + EXTRA - _elsewhere.get(device, 0)
    if torch.cuda.memory_reserved(device) > BLOCKS * limit and _unused(device) > UNUSED:
        _empty_cache()


def _give_back(device: torch.device) -> None:
    """Blocks that only the check needed would stay with the process, and the program may need other sizes."""
    if _unused(device) > SPARE:
        _empty_cache()


def _empty_cache() -> None:
    with contextlib.suppress(RuntimeError):  # while a CUDA graph is being captured, nothing may be freed
        torch.cuda.empty_cache()


def memory_left(device: torch.device) -> int:
    """Bytes that a check may still take on a device.

    >>> memory_left(torch.device("cpu")) >= LEAST
    True
    """
    program = _program.get(device) or _peak_bytes(device)
    most = 2 * program + EXTRA - _elsewhere.get(device, 0)
    left = most - _bytes_now(device)
    if device.type == "cuda":
        left = int(BLOCKS * most) - _bytes_now(device)
        left = min(left, torch.cuda.mem_get_info(device)[0] + _unused(device))
    return max(LEAST, left)


def may_run_again(inputs: Any) -> bool:
    """Whether the program may take as much as it ever took on top of what it holds now: `may_run_again([x])`."""
    return all(_bytes_now(d) <= _program.get(d, _peak_bytes(d)) + EXTRA for d in _bytes_by_device(inputs))


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
