"""Parts of a program left out of its compiles: functions, modules and operators that stay eager.

Each does what the line a person would paste does. Functions are known by their code and so need no line in the
program: Dynamo asks one rule whether it may look into a call, and one callback for each frame that is run.

Versions: `check_verbose`, `ConvertFrameReturn` and `FrameExecStrategy` are those of 2.11 to 2.13.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

import torch

Place = tuple[str, str, int]  # file, function, and one of its lines


class NoSuchTarget(RuntimeError):
    """What is to be left out does not exist in this torch."""


def keep_operators_eager(names: Sequence[str]) -> None:
    """Inductor calls the eager kernels of these operators: `keep_operators_eager(["aten.sin.default"])`.

    Call it once `torch._inductor.graph` is imported.
    """
    make_fallback = importlib.import_module("torch._inductor.graph").make_fallback
    for name in names:
        make_fallback(operator_named(name), warn=False, override_decomp=True)


def forget_decompositions(names: Sequence[str]) -> None:
    """Inductor gets these operators whole: `forget_decompositions(["aten.exponential.default"])`."""
    table = importlib.import_module("torch._inductor.decomposition").decompositions
    for name in names:
        table.pop(operator_named(name), None)


def operator_named(name: str) -> Any:
    """The overload of a dotted name: `operator_named("aten.sin.default")`."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise NoSuchTarget(f"this torch has no operator {name}")
    return found


def is_place(code: CodeType, place: Place) -> bool:
    """Whether this is the code of the function at `place`: same file and name, and the line is one of its own."""
    file, function, line = place
    if code.co_name != function or code.co_filename != file:
        return False
    lines = [at for _, _, at in code.co_lines() if at is not None]
    return min(lines, default=0) <= line <= max(lines, default=0)


def leave_functions_eager(places: Sequence[Place]) -> None:
    """These functions, and what they call, run as they would under `torch.compiler.disable`."""
    rules: Any = importlib.import_module("torch._dynamo.trace_rules")
    original = rules.check_verbose

    @functools.wraps(original)
    def check_verbose(subject: Any, *args: Any, **kwargs: Any) -> Any:
        code = _code_of(subject)
        if code is not None and any(is_place(code, place) for place in places):
            return rules.SkipResult(True, "left eager by torchsleuth")
        return original(subject, *args, **kwargs)

    rules.check_verbose = check_verbose
    _skip_frames(places)


def trace_functions_whole(places: Sequence[Place]) -> None:
    """These functions are what `torch._dynamo.nonstrict_trace` makes of them: one step of the graph, inside unseen.

    Versions: `nonstrict_trace` is there from 2.7 on; a torch without it, or a function that no name of its file leads
    to, is a `NoSuchTarget`.
    """
    trace = getattr(importlib.import_module("torch._dynamo"), "nonstrict_trace", None)
    if trace is None:
        raise NoSuchTarget("this torch has no nonstrict_trace")
    wrapper = importlib.import_module("torch._dynamo.convert_frame").CatchErrorsWrapper
    original = wrapper.__call__
    waiting = list(places)

    @functools.wraps(original)
    def call(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        while waiting:  # by the first frame the program has defined what it calls
            owner, name, function = _holder(waiting.pop())
            setattr(owner, name, trace(function))
        return original(self, frame, *args, **kwargs)

    wrapper.__call__ = call


def _holder(place: Place) -> tuple[Any, str, Any]:
    """The module or class that holds the function at a place, under which name, and the function."""
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) != place[0]:
            continue
        classes = [each for each in vars(module).values() if isinstance(each, type)]
        for owner in (module, *classes):
            for name, held in list(vars(owner).items()):
                code = getattr(held, "__code__", None)
                if isinstance(code, CodeType) and is_place(code, place):
                    return owner, name, held
    raise NoSuchTarget(f"no name of {place[0]} leads to the function {place[1]}")


def _code_of(subject: Any) -> CodeType | None:
    if isinstance(subject, CodeType):
        return subject
    code = getattr(subject, "__code__", None)
    if code is None and hasattr(subject, "get_code"):
        try:
            code = subject.get_code()
        except Exception:  # a variable that stands for no function of Python's
            return None
    return code if isinstance(code, CodeType) else None


def _skip_frames(places: Sequence[Place]) -> None:
    """Frames of these functions are left alone together with all that is called from them."""
    wrapper = importlib.import_module("torch._dynamo.convert_frame").CatchErrorsWrapper
    types: Any = importlib.import_module("torch._dynamo.types")
    skip = types.FrameExecStrategy(types.FrameAction.SKIP, types.FrameAction.SKIP)
    original = wrapper.__call__

    @functools.wraps(original)
    def call(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        if any(is_place(frame.f_code, place) for place in places):
            return types.ConvertFrameReturn(frame_exec_strategy=skip)
        return original(self, frame, *args, **kwargs)

    wrapper.__call__ = call


def leave_modules_eager(paths: Sequence[str], classes: Sequence[str] = ()) -> None:
    """Submodules at these paths, and all of these classes (`nn.ReLU`), run as under `torch.compiler.disable`.

    A path is one below any module that is compiled.
    """
    wrapper = importlib.import_module("torch._dynamo.convert_frame").CatchErrorsWrapper
    original = wrapper.__call__
    found = [class_named(name) for name in classes]

    @functools.wraps(original)
    def call(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        for owner in (*found, *_modules_at(frame, paths)):
            _leave_eager(owner)
        return original(self, frame, *args, **kwargs)

    wrapper.__call__ = call


def class_named(name: str) -> Any:
    """The class of torch's modules with that name: `class_named("nn.ReLU")`."""
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not issubclass(found, torch.nn.Module):
        raise NoSuchTarget(f"this torch has no module class torch.{name}")
    return found


def _leave_eager(owner: Any) -> None:
    if not getattr(owner.forward, "_torchdynamo_disable", False):
        owner.forward = torch.compiler.disable(owner.forward)


def _modules_at(frame: Any, paths: Sequence[str]) -> Iterator[torch.nn.Module]:
    """The submodules at `paths` of every module that the frame can see."""
    names = frame.f_code.co_names
    visible = [*dict(frame.f_locals).values(), *(frame.f_globals.get(name) for name in names)]
    for root in visible:
        if not isinstance(root, torch.nn.Module):
            continue
        for path in paths:
            try:
                yield root.get_submodule(path)
            except AttributeError:
                continue
