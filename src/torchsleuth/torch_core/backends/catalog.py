"""The debugging backends by name: what each does, in one line, and where it lives.

This is what torch's backend entry points name. The backends are imported when one is asked for, so that the list costs
nothing.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Option:
    """One thing a backend lets you choose, with `torch.compile(options={name: ...})`."""

    name: str
    line: str


@dataclass(frozen=True)
class DebugBackend:
    """One debugging backend: `torch.compile(f, backend=name)`."""

    name: str
    line: str
    options: tuple[Option, ...] = ()


_COMPILERS = (
    Option("fw_compiler", "compiles the forward graph instead of running it eagerly"),
    Option("bw_compiler", "compiles the backward graph instead of running it eagerly"),
)
_MODE = (Option("mode", "the dispatch mode (any context manager) to run forward and backward under"),)
_OPS = (Option("ops", '"custom" (default): operators that are not torch\'s own; "all": every operator'),)

CATALOG = (
    DebugBackend("sleuth_eager", "Dynamo's graph, run as it is: is it the capture?"),
    DebugBackend(
        "sleuth_eager_noexcept",
        "as eager; an exception says which line of the generated graph failed, and that eager fails too",
    ),
    DebugBackend("sleuth_pre_dispatch_eager", "logs the graph as aten calls above autograd, then runs it"),
    DebugBackend(
        "sleuth_eager_debug",
        "as eager; an operator that changes or aliases an input its schema does not declare is an error",
    ),
    DebugBackend("sleuth_ts", "Dynamo's graph, compiled by TorchScript"),
    DebugBackend(
        "sleuth_invoke_subgraph",
        "AOTAutograd; an outer trace shows forward and backward as one subgraph each",
    ),
    DebugBackend("sleuth_aot_eager", "AOTAutograd with eager kernels: is it AOTAutograd?", _COMPILERS),
    DebugBackend(
        "sleuth_aot_eager_default_partitioner",
        "as aot_eager, with the partitioner that recomputes nothing",
    ),
    DebugBackend(
        "sleuth_aot_eager_decomp_partition",
        "AOTAutograd with Inductor's decompositions and partitioner, eager kernels: is it one of those?",
    ),
    DebugBackend(
        "sleuth_aot_eager_decomp_partition_with_mode",
        "as aot_eager_decomp_partition, forward and backward under a dispatch mode of yours",
        _MODE,
    ),
    DebugBackend(
        "sleuth_aot_eager_decomp_partition_crossref",
        "as aot_eager_decomp_partition; custom operators' fake kernels and schemas are checked against the real calls",
        _OPS,
    ),
    DebugBackend("sleuth_aot_ts", "AOTAutograd's graphs, compiled by TorchScript"),
    DebugBackend("sleuth_relu_compile_error", "for testing debuggers: fails to compile a relu"),
    DebugBackend("sleuth_relu_runtime_error", "for testing debuggers: a relu fails when it runs"),
    DebugBackend("sleuth_relu_accuracy_error", "for testing debuggers: relu(x) gives x + 1"),
    DebugBackend(
        "sleuth_non_leaf_compile_error",
        "for testing debuggers: fails to compile a graph with an input that has a gradient history",
    ),
)


def __getattr__(name: str) -> Any:
    if all(name != each.name for each in CATALOG):
        raise AttributeError(f"module 'torchsleuth.torch_core.backends.catalog' has no attribute {name!r}")
    return getattr(importlib.import_module("torchsleuth.torch_core.backends.debugging"), name)
