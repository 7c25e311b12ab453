"""A compile that stops after Inductor's passes: the graph they leave is run operator by operator.

Wrong results of a decomposition or of a pass show without lowering, code generation and a C++ compiler, which take
most of a compile's time. What only a lowering knows how to do fails when it is called.

Versions: 2.11 to 2.15 compile each graph in `_compile_fx_inner`, which ends its passes with
`_recursive_post_grad_passes`. Where one of the two is missing, the compile runs on as usual.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch


class _Passed(BaseException):
    """The passes over a graph have ended; no handler of the compiler's is to take it for an error."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        super().__init__()
        self.graph = graph


@contextlib.contextmanager
def passes_alone() -> Iterator[None]:
    """Inside, what Inductor compiles runs in eager as its passes left it; forward and backward alike.

    >>> with passes_alone(): torch.compile(torch.relu)(x)
    tensor([0., 2.])
    """
    compiler: Any = importlib.import_module("torch._inductor.compile_fx")
    compiling = getattr(compiler, "_compile_fx_inner", None)
    passes = getattr(compiler, "_recursive_post_grad_passes", None)
    if compiling is None or passes is None:
        yield
        return
    compiler._compile_fx_inner = _evaluating(compiling)
    compiler._recursive_post_grad_passes = _ending(passes)
    try:
        yield
    finally:
        compiler._compile_fx_inner, compiler._recursive_post_grad_passes = compiling, passes


def _ending(passes: Callable[..., Any]) -> Callable[..., Any]:
    """The passes, after which nothing comes; those over nested graphs are part of those over the outer one."""
    depth = 0

    @functools.wraps(passes)
    def run(graph: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> None:
        nonlocal depth
        depth += 1
        try:
            passes(graph, *args, **kwargs)
        finally:
            depth -= 1
        if not depth:
            raise _Passed(graph)

    return run


def _evaluating(compiling: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compiling)
    def compile_graph(*args: Any, **kwargs: Any) -> Any:
        try:
            return compiling(*args, **kwargs)
        except _Passed as passed:
            graph = passed.graph

        def call(inputs: list[Any]) -> Any:
            values = list(inputs)
            inputs.clear()
            with torch.no_grad():
                return torch.fx.Interpreter(graph).run(*values)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    return compile_graph
