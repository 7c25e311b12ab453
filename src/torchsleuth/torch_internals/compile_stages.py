"""Stops a compile as soon as the stage in which a failure is expected has passed.

Inductor works in stages: graph passes, lowering, scheduling and code generation, then the C++ or Triton compiler.
The last takes most of the time and cannot bring back an error of an earlier one.

Versions: 2.11 to 2.15 lower in `GraphLowering.run` and then call `compile_to_module`, which generates code and hands
it to `_compile_to_module_lines`. Where one of the two is missing, nothing is stopped and the compile runs on.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# The last function before the next stage.
_NEXT = {"lowering": "compile_to_module", "codegen": "_compile_to_module_lines"}
_EARLY = re.compile(
    r"torch/_inductor/(?:lowering\.py|graph\.py:(?:call_function|run_node|placeholder|output)$)"
)
_CODEGEN = re.compile(
    r"torch/_inductor/(?:scheduler|ir|loop_body|dependencies|sizevars|index_propagation|bounds|memory|graph|ops_handler"
    r"|fx_passes/\w+|codegen/[\w/]+|kernel/[\w/]+|pattern_matcher)\.py"
)
_LATE = re.compile(
    r"torch/_inductor/(?:codecache|cpp_builder|async_compile|cpu_vec_isa|output_code|autotune_process|select_algorithm"
    r"|runtime/|compile_worker/)|^triton/|<generated>"
)


def failing_stage(exceptions: Sequence[str], frames: Sequence[str]) -> str | None:
    """The stage in which a compile error arose, from its exceptions and innermost frames; None where it is unsure.

    >>> failing_stage(["torch._inductor.exc.LoweringException", "KeyError"], [])
    'lowering'
    """
    if any(_LATE.search(each) for each in frames) or any("CppCompileError" in name for name in exceptions):
        return None
    if any(name.rpartition(".")[2] == "LoweringException" for name in exceptions):
        return "lowering"
    if any(_EARLY.search(each) for each in frames):
        return "lowering"
    return "codegen" if any(_CODEGEN.search(each) for each in frames) else None


@contextlib.contextmanager
def stopping_after(stage: str | None, decided: type[BaseException]) -> Iterator[None]:
    """Raises `decided` in a compile that has passed `stage`; with None it does nothing.

    Use: `with stopping_after("lowering", Decided): compile_it()`.
    """
    lowering = _graph_lowering() if stage else None
    name = _NEXT.get(stage or "")
    original: Callable[..., Any] | None = getattr(lowering, name, None) if name else None
    if original is None or name is None:
        yield
        return

    def stop(*_: object, **__: object) -> None:
        raise decided

    setattr(lowering, name, stop)
    try:
        yield
    finally:
        setattr(lowering, name, original)


def _graph_lowering() -> Any:
    return getattr(importlib.import_module("torch._inductor.graph"), "GraphLowering", None)
