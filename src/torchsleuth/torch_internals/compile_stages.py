"""Compiles that end early: as soon as the stage in which a failure is expected has passed, or after Inductor's passes.

Inductor works in stages: passes over the joint graph, passes over each of its parts, lowering, scheduling and code
generation, then the C++ or Triton compiler. The last takes most of the time and cannot bring back an error of an
earlier one. And wrong results of a decomposition or of a pass show in the graph that the passes leave, run operator by
operator; what only a lowering knows how to do fails when it is called.

Versions: 2.11 to 2.15 run the passes over the joint graph before the first `_compile_fx_inner`, which ends its own with
`_recursive_post_grad_passes`, lower in `GraphLowering.run` and then call `compile_to_module`, which generates code and
hands it to `_compile_to_module_lines`. Where one of these is missing, the compile runs on as usual.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchsleuth.torch_internals.places import replaced

_LOWERING = "torch._inductor.graph", "GraphLowering"
# The first function of the next stage: its module, the class that has it, its name.
_NEXT = {
    "joint": ("torch._inductor.compile_fx", "", "_compile_fx_inner"),
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

    def stop(*_: object, **__: object) -> None:
        raise decided

    place = _NEXT.get(stage or "")
    with replaced(*place, lambda _: stop) if place is not None else contextlib.nullcontext():
        yield


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
    module = "torch._inductor.compile_fx"
    with replaced(module, "", "_compile_fx_inner", _evaluating) as evaluating:
        # What ends the passes by an exception needs who catches it.
        ending = replaced(module, "", "_recursive_post_grad_passes", _ending) if evaluating.there else None
        with ending or contextlib.nullcontext():
            yield


def _ending(passes: Callable[..., Any]) -> Callable[..., Any]:
    """The passes, after which nothing comes; those over nested graphs are part of those over the outer one."""
    depth = 0

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
