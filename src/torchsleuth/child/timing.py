"""How long a compiled candidate takes to run, once it has been compiled and its first run is over."""

from __future__ import annotations

import time
from typing import Any

import torch

# The fastest of many runs is what the machine can do; a slow graph gets fewer.
RUNS = 50
SECONDS = 0.7


def keep_compiled(ready: Any) -> list[Any]:
    """The list into which a trial will put what its compiler yields: `kept = keep_compiled(ready)`.

    From here on there is one thread: on a busy machine threads that wait for each other take any time (measured: a
    graph of 0.1 ms took 104 ms with two threads beside other work on two cores).
    """
    torch.set_num_threads(1)
    kept: list[Any] = []
    prepare = ready.prepare

    def prepare_and_keep() -> Any:
        compile_it = prepare()

        def compile_and_keep() -> Any:
            kept.append(compile_it())
            return kept[-1]

        return compile_and_keep

    ready.prepare = prepare_and_keep
    return kept


def run_seconds(ready: Any, compiled: Any) -> float:
    """Seconds of the fastest run, backward included where there is one."""
    best, until = float("inf"), time.monotonic() + SECONDS
    for _ in range(RUNS):
        values = ready.inputs()
        with ready.ambient():
            _wait_for_device()
            started = time.perf_counter()
            ready.differentiate(compiled(values))
            _wait_for_device()
            best = min(best, time.perf_counter() - started)
        if time.monotonic() > until:
            break
    return best


def _wait_for_device() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
