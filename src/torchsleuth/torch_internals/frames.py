"""Dynamo's work on Python frames: each compile of one, what came of it, and each graph break as it is decided.

Dynamo tells one method of its tracer about every break before it acts on it; frames that it cannot even begin with
raise. Both are looked at here, and torch's own registry of break reasons says which one it is.

Versions: `convert_frame._compile` is that of 2.13, its arguments are looked up by name, and what a version does not
pass is taken for absent. `log_graph_break` has the error as its `exc`; where it is called without, the error being
handled is taken. Where either is missing `UnsupportedTorch` is raised; without the registry breaks have no number.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import json
import linecache
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from torchsleuth.torch_internals.hooks import THE_REST, answer_for_disabled
from torchsleuth.torch_internals.places import replaced


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

    def as_without_us(self) -> Any:
        return self.compile()


def hook_frame_compiles(handler: Callable[[FrameCompile], Any]) -> Callable[[], None]:
    """Routes every compile of a frame through `handler`, which returns what `compile()` gives; returns the undo."""

    def routed(original: Any) -> Any:
        signature = inspect.signature(original)

        def compile_frame(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            entries = given.get("cache_entries_for_reasons", given.get("cache_entries"))
            return handler(
                FrameCompile(
                    compile_id=str(given.get("compile_id")),
                    code=given["code"],
                    frame=given.get("frame"),
                    entries=list(entries) if entries is not None else _chain(given.get("cache_entry")),
                    fullgraph=bool(given.get("one_graph")),
                    backend=innermost_backend(given.get("compiler_fn")),
                    compile=lambda: original(*args, **kwargs),
                )
            )

        return compile_frame

    needed = "in torch {} compiles of frames cannot be seen, and what Dynamo gives up is not told" + THE_REST
    return replaced("torch._dynamo.convert_frame", "", "_compile", routed, needed=needed)


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


_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parents[1])
_PYTHON = str(Path(linecache.__file__).parent)
# Of the calls that led to the compiled function, the nearest.
MOST_ABOVE = 20
MOST_FAILURE_TEXT = 300


@dataclass(frozen=True)
class StackFrame:
    """One line of a stack; `library` where it is torch's own or Python's."""

    file: str
    line: int
    function: str
    code: str
    library: bool


@dataclass(frozen=True)
class BreakSeen:
    """A graph break while the frame of `function` was compiled, which stood at `line` of its file.

    `stack` leads from the compiled function to the line that cannot be captured, `above` to the compiled function.
    `text` is what torch says. Where Dynamo `resumes`, the rest of the function becomes another frame; else Python runs
    the function without the compiler, or the program gets an error, where it is `fatal`. `traced` counts the operations
    captured until then.
    """

    type: str
    text: str
    number: str | None
    hints: tuple[str, ...]
    function: str
    code: str
    file: str
    line: int
    column: int | None
    stack: tuple[StackFrame, ...]
    above: tuple[StackFrame, ...]
    resumes: bool
    fatal: bool
    traced: int


# Gets a function that looks at the break, to be called at once, and the backend whose capture it is.
Handler = Callable[[Callable[[], BreakSeen], Any], None]


def hook_graph_breaks(handler: Handler) -> Callable[[], None]:
    """Tells `handler` of every graph break that Dynamo handles; returns the undo function."""

    def routed(original: Any) -> Any:
        def log_graph_break(self: Any, *args: Any, **kwargs: Any) -> Any:
            error = kwargs.get("exc") or next(
                (a for a in args if isinstance(a, BaseException)), sys.exc_info()[1]
            )
            if error is not None and not getattr(error, "logged", False):
                resumes = "falling back to eager" not in str(kwargs.get("reason", ""))
                backend = innermost_backend(getattr(getattr(self, "output", None), "compiler_fn", None))
                handler(functools.partial(_seen, self.f_code, error, tracer=self, resumes=resumes), backend)
            return original(self, *args, **kwargs)

        return log_graph_break

    place = ("torch._dynamo.symbolic_convert", "InstructionTranslatorBase", "log_graph_break")
    return replaced(*place, routed, needed="in torch {} graph breaks cannot be seen")


def hook_frame_refusals(handler: Handler) -> Callable[[], None]:
    """Tells `handler` of frames that cannot be compiled at all, before or instead of being traced; returns the undo.

    With `fullgraph=True` that is every graph break.
    """

    def routed(original: Any) -> Any:
        def call(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
            left_alone = answer_for_disabled(sys._getframe(1))
            if left_alone is not None:
                return left_alone
            try:
                return original(self, frame, *args, **kwargs)
            except Exception as error:
                if is_graph_break(error) and not getattr(error, "logged", False):
                    backend = innermost_backend(getattr(self, "_torchdynamo_orig_backend", None))
                    fatal = bool(getattr(self, "_one_graph", False))
                    handler(functools.partial(_seen, frame.f_code, error, fatal=fatal), backend)
                raise

        return call

    return replaced("torch._dynamo.convert_frame", "ConvertFrameAssert", "__call__", routed)


def is_graph_break(error: BaseException) -> bool:
    """Whether Dynamo says with this error that it cannot capture something; a limit of recompilations is not that."""
    exc: Any = importlib.import_module("torch._dynamo.exc")
    kinds = tuple(getattr(exc, name, ()) for name in ("Unsupported", "UserError"))
    return isinstance(error, kinds) and "recompile limit" not in (getattr(error, "gb_type", "") or "")


def failure_text(error: BaseException) -> str | None:
    """What a compile failed with, in one line; None where Python gets the frame, or it was interrupted."""
    exc: Any = importlib.import_module("torch._dynamo.exc")
    # A limit of recompilations that is to be an error is one of another class.
    to_python = tuple(getattr(exc, name, ()) for name in ("SkipFrame", "Unsupported"))
    if not isinstance(error, Exception) or isinstance(error, to_python) or is_graph_break(error):
        return None
    inner = getattr(error, "inner_exception", None) or error
    first = next(filter(None, map(str.strip, str(inner).splitlines())), "")
    return f"{type(inner).__name__}: {first}"[:MOST_FAILURE_TEXT] if first else type(inner).__name__


def _seen(
    code: Any, error: BaseException, *, tracer: Any = None, resumes: bool = False, fatal: bool = False
) -> BreakSeen:
    """A break of what `tracer` goes through; without one the frame could not be begun with."""
    position = getattr(getattr(tracer, "current_instruction", None), "positions", None)
    stack = _frames(getattr(error, "real_stack", None) or ())
    return BreakSeen(
        function=original_function(code)[0],
        code=code.co_name,
        file=code.co_filename,
        line=int(getattr(tracer, "lineno", None) or code.co_firstlineno),
        # Of an inlined function only the line is known.
        column=getattr(position, "col_offset", None) if len(stack) <= 1 else None,
        stack=stack or (_definition(code),),
        above=_above(sys._getframe()),
        resumes=resumes,
        fatal=fatal,
        traced=_operations(tracer),
        **_reason(error),
    )


def _reason(error: BaseException) -> dict[str, Any]:
    text = str(getattr(error, "msg", None) or error)
    # Where handling one break ran into another, the first is the cause.
    kind = text.strip().splitlines()[0].strip() if text.strip() else type(error).__name__
    number, hints = _registry().get(kind, (None, ()))
    return {"type": kind, "text": text, "number": number, "hints": hints}


@functools.cache
def _registry() -> dict[str, tuple[str, tuple[str, ...]]]:
    """torch's list of break reasons: the number and the hints of each."""
    path = Path(_TORCH) / "_dynamo" / "graph_break_registry.json"
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        return {
            entry["Gb_type"]: (number, tuple(h for h in entry.get("Hints", ()) if "{" not in h))
            for number, entries in known.items()
            for entry in reversed(entries)
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _operations(tracer: Any) -> int:
    try:
        return int(tracer.output.count_calls())
    except Exception:  # it is only a count
        return 0


def _frames(stack: Iterable[Any]) -> tuple[StackFrame, ...]:
    return tuple(_frame(f.filename, f.lineno or 0, f.name) for f in stack if f.filename is not None)


def _frame(file: str, line: int, function: str) -> StackFrame:
    text = linecache.getline(file, line).strip()
    pythons = file.startswith(_PYTHON) and "site-packages" not in file
    return StackFrame(file, line, function, text, pythons or file.startswith(_TORCH))


def _definition(code: Any) -> StackFrame:
    """Where a function is defined, below its decorators."""
    line = code.co_firstlineno
    while linecache.getline(code.co_filename, line).lstrip().startswith("@"):
        line += 1
    return _frame(code.co_filename, line, code.co_name)


def _above(frame: FrameType | None) -> tuple[StackFrame, ...]:
    """The calls that led here, outermost first, without torch's and ours."""
    found: list[StackFrame] = []
    while frame is not None and len(found) < MOST_ABOVE:
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, _OURS)) and not file.startswith("<"):
            found.append(_frame(file, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(reversed(found))
