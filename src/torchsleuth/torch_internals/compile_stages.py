"""Stops a compile as soon as the stage in which a failure is expected has passed.

Inductor works in stages: passes over the joint graph, passes over each of its parts, lowering, scheduling and code
generation, then the C++ or Triton compiler. The last takes most of the time and cannot bring back an error of an
earlier one.

Versions: 2.11 to 2.15 run the passes over the joint graph before the first `_compile_fx_inner`, lower in
`GraphLowering.run` and then call `compile_to_module`, which generates code and hands it to
`_compile_to_module_lines`. Where one of these is missing, nothing is stopped and the compile runs on.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_LOWERING = "torch._inductor.graph", "GraphLowering"
# The first function of the next stage: its module, the class that has it, its name.
_NEXT = {
    "joint": ("torch._inductor.compile_fx", None, "_compile_fx_inner"),
    "lowering": (*_LOWERING, "compile_to_module"),
    "codegen": (*_LOWERING, "_compile_to_module_lines"),
}
_JOINT = re.compile(
    r"torch/_inductor/fx_passes/(?:joint_graph|fuse_attention|pad_mm|misc_patterns|replace_random"
    r"|apply_gumbel_max_trick|auto_chunker/\w+|serialized_patterns/\w+)\.py"
)
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
    if any(_JOINT.search(each) for each in frames):
        return "joint"
    if any(_EARLY.search(each) for each in frames):
        return "lowering"
    return "codegen" if any(_CODEGEN.search(each) for each in frames) else None


@contextlib.contextmanager
def stopping_after(stage: str | None, decided: type[BaseException]) -> Iterator[None]:
    """Raises `decided` in a compile that has passed `stage`; with None it does nothing.

    Use: `with stopping_after("lowering", Decided): compile_it()`.
    """
    owner, name = _next(stage)
    original: Callable[..., Any] | None = getattr(owner, name, None)
    if original is None:
        yield
        return

    def stop(*_: object, **__: object) -> None:
        raise decided

    setattr(owner, name, stop)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _next(stage: str | None) -> tuple[Any, str]:
    if stage not in _NEXT:
        return None, ""
    module, owner, name = _NEXT[stage]
    found = importlib.import_module(module)
    return getattr(found, owner, None) if owner else found, name
