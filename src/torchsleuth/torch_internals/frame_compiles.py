"""Each compile of one Python frame by Dynamo: what is compiled, which compiled code it already had, what came of it.

Versions: `convert_frame._compile` is that of 2.13, its arguments are looked up by name; what a version does not pass is
taken for absent, and where the function is missing `UnsupportedTorch` is raised.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

from torchsleuth.torch_internals.hooks import UnsupportedTorch


@dataclass(frozen=True)
class FrameCompile:
    """Dynamo is about to compile one frame: `compile_id` is torch's name for it (`0/1`: frame 0, second time).

    `entries` are the compiled codes that the function has and whose guards said no; `backend` is the object that was
    given to torch.compile.
    """

    compile_id: str
    code: CodeType
    frame: Any
    entries: Sequence[Any]
    fullgraph: bool
    backend: Any
    compile: Callable[[], Any] = field(repr=False)


def hook_frame_compiles(handler: Callable[[FrameCompile], Any]) -> Callable[[], None]:
    """Routes every compile of a frame through `handler`, which returns what `compile()` gives; returns the undo."""
    convert_frame: Any = importlib.import_module("torch._dynamo.convert_frame")
    original = getattr(convert_frame, "_compile", None)
    if original is None:
        raise UnsupportedTorch(f"in torch {torch.__version__} compiles of frames cannot be seen")
    signature = inspect.signature(original)

    @functools.wraps(original)
    def compile_frame(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        first = given.get("cache_entry")
        entries = given.get("cache_entries_for_reasons", given.get("cache_entries"))
        return handler(
            FrameCompile(
                compile_id=str(given.get("compile_id")),
                code=given["code"],
                frame=given.get("frame"),
                entries=list(entries) if entries is not None else _chain(first),
                fullgraph=bool(given.get("one_graph")),
                backend=innermost_backend(given.get("compiler_fn")),
                compile=lambda: original(*args, **kwargs),
            )
        )

    convert_frame._compile = compile_frame
    return lambda: setattr(convert_frame, "_compile", original)


def was_compiled(result: Any) -> bool:
    """Whether what `compile()` gave holds code; else Python runs the frame as it is."""
    guarded = getattr(result, "guarded_code", result)
    return guarded is not None


def guards_of(result: Any) -> tuple[str, ...]:
    """The guards of what `compile()` gave, as torch writes them."""
    guards = getattr(getattr(result, "guarded_code", result), "guard_manager", None)
    return tuple(str(part) for part in getattr(guards, "code_parts", None) or ())


def uncompiled(function: Any) -> Any:
    """What was given to torch.compile, of what it gave back; anything else as it is."""
    inside = getattr(function, "_torchdynamo_orig_callable", None) or getattr(function, "_orig_mod", None)
    return function if inside is None else inside


def copy_of_graph(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph as it is now, with the same parameters: whoever compiles it may change it."""
    return torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))


def compiled_code(result: Any) -> CodeType | None:
    """The code that runs instead of the frame's own, from what `compile()` gave; None where there is none."""
    code = getattr(getattr(result, "guarded_code", result), "code", None)
    return code if isinstance(code, CodeType) else None


def original_function(code: CodeType) -> tuple[str, str, int]:
    """(name, file, line) of the function as the user wrote it, also for the rest of one after a graph break."""
    resume: Any = importlib.import_module("torch._dynamo.resume_execution")
    known = getattr(getattr(resume, "ContinueExecutionCache", None), "generated_code_metadata", {})
    for _ in range(1000):  # the rest of the rest of ...
        found = known.get(code)
        before = getattr(found, "code", None)
        if before is None or before is code:
            break
        code = before
    return code.co_qualname, code.co_filename, code.co_firstlineno


def innermost_backend(backend: Any) -> Any:
    """The backend inside of what torch.compile and Dynamo put around it."""
    for _ in range(10):
        inside = getattr(backend, "_torchdynamo_orig_backend", None)
        if inside is None and type(backend).__name__ == "_TorchCompileWrapper":
            inside = backend.compiler_fn
        if inside is None:
            break
        backend = inside
    return backend


def _chain(entry: Any) -> list[Any]:
    found: list[Any] = []
    while entry is not None and len(found) < 1000:
        found.append(entry)
        entry = getattr(entry, "next", None)
    return found
