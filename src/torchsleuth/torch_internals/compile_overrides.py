"""A program's compiles otherwise, without a change to the program: other settings, another backend, parts left eager.

Each does what the line a person would paste does. Settings are put in force at every place a compile passes, because
the program, or options= of its torch.compile, may set them in between; the backward that is compiled later passes the
last of them by itself. Functions are known by their code and so need no line in the program: Dynamo asks one rule
whether it may look into a call, and one callback for each frame that is run.

Versions: the places are those of `hooks.py`; `check_verbose`, `ConvertFrameReturn` and `FrameExecStrategy` those of
2.11 to 2.15. A setting or operator that a version lacks is an error, not skipped.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

import torch

from torchsleuth.torch_internals import hooks
from torchsleuth.torch_internals.configuration import held_by
from torchsleuth.torch_internals.places import replaced

INDUCTOR = "torch._inductor.config"
Settings = Mapping[str, Mapping[str, Any]]
_NO_RULES = "torch {} has no rule for which functions are looked into"


class UnknownSetting(RuntimeError):
    """This torch has no such setting."""


def settings_for_dynamic(dynamic: bool) -> dict[str, bool]:
    """What `torch.compile(dynamic=...)` stands for.

    >>> settings_for_dynamic(True)
    {'assume_static_by_default': False}
    """
    if dynamic:
        return {"assume_static_by_default": False}
    return {"assume_static_by_default": True, "automatic_dynamic_shapes": False}


def ignore_dynamic_marks() -> None:
    """From now on `mark_dynamic` and `maybe_mark_dynamic` of a program do nothing, as if their lines were gone."""
    for module_name in ("torch._dynamo", "torch._dynamo.decorators"):
        module: Any = importlib.import_module(module_name)
        for name in ("mark_dynamic", "maybe_mark_dynamic"):
            if hasattr(module, name):
                setattr(module, name, lambda *_args, **_kwargs: None)


def _at_frames(look: Callable[[Any], Any]) -> None:
    """What `look` answers for a frame stands for Dynamo's answer; with None, Dynamo is asked."""

    def looked_at(original: Any) -> Any:
        def call(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
            answer = hooks.answer_for_disabled(sys._getframe(1))
            answer = look(frame) if answer is None else answer
            return original(self, frame, *args, **kwargs) if answer is None else answer

        return call

    replaced(*hooks.FRAME_CALLBACK, looked_at, needed="torch {} has no frame callback to hook into")


def mark_dimensions(dimensions: Sequence[tuple[str, str, int]]) -> None:
    """Marks (function, argument, dimension) as dynamic whenever Dynamo comes to a call of such a function.

    A version that was compiled with the mark takes tensors without it, so the first call is enough. Sizes 0 and 1 are
    left alone: torch compiles them separately and would refuse the mark.
    """

    def mark(frame: Any) -> None:
        for function, argument, dimension in dimensions:
            named = function.rpartition(".")[2] == frame.f_code.co_name
            value = frame.f_locals.get(argument) if named else None
            if isinstance(value, torch.Tensor) and dimension < value.dim() and value.shape[dimension] > 1:
                torch._dynamo.mark_dynamic(value, dimension)

    _at_frames(mark)


def compile_nothing() -> None:
    """From now on every `torch.compile` of a program is ignored, `fullgraph=True` as well."""
    torch.compiler.set_stance("force_eager")


def force_fullgraph(fullgraph: bool) -> None:
    """From now on every `torch.compile` of a program has this `fullgraph`, whatever it says itself."""

    def forced(original: Any) -> Any:
        return lambda *args, **kwargs: original(*args, **{**kwargs, "nopython": fullgraph})

    replaced("torch._dynamo", "", "optimize", forced)


def compile_with(backend: str | None, mode: str | None) -> None:
    """From now on every `torch.compile` of a program has this backend, and Inductor this mode.

    Replaced where it is handed to Dynamo, so that whoever watches sees what really compiles.
    """

    def forced(original: Any) -> Any:
        def optimize(*args: Any, **kwargs: Any) -> Any:
            given = kwargs.pop("backend", args[0] if args else "inductor")
            return original(_instead_of(given, backend, mode), *args[1:], **kwargs)

        return optimize

    replaced("torch._dynamo", "", "optimize", forced)


def _instead_of(given: Any, backend: str | None, mode: str | None) -> Any:
    """The backend to use instead of the one given; options= of the program stay where Inductor stays."""
    if backend not in (None, "inductor"):
        return backend_named(backend)
    is_inductor = given == "inductor" or hooks.is_inductor(given)
    if (backend is None and not is_inductor) or (is_inductor and mode is None):
        return given
    wrapper: Any = torch._TorchCompileInductorWrapper(mode, None, getattr(given, "dynamic", None))
    of_modes = {key for options in torch._inductor.list_mode_options().values() for key in options}
    for key, value in (getattr(given, "config", None) or {}).items():
        if key not in of_modes:
            wrapper.config[key] = value
    return wrapper


def run_before_captures(snippet: str) -> None:
    """Runs what a person would paste, once, when Dynamo comes to the first frame: by then all of torch is there."""
    pending = [snippet]

    def run_it(_frame: Any) -> None:
        while pending:
            try:
                run_snippet(pending.pop())
            except Exception as error:  # a run without it would be taken for a run with it
                sys.stderr.write(f"torchsleuth: the snippet cannot be run: {type(error).__name__}: {error}\n")
                raise SystemExit(2) from error

    _at_frames(run_it)


def run_snippet(snippet: str) -> None:
    """Runs a few lines as if they stood in the program below `import torch`: `run_snippet("torch.manual_seed(0)")`."""
    exec(compile(snippet, "<workaround>", "exec"), {"torch": torch})


def check_settings(wanted: Settings) -> None:
    """Raises `UnknownSetting` for what this torch does not have."""
    for module_name, values in wanted.items():
        module = importlib.import_module(module_name)
        for key in values:
            if key not in module._config:
                raise UnknownSetting(f"this torch has no setting {module_name}.{key}")


def put_in_force(wanted: Settings) -> None:
    """Sets what differs from `wanted`: `put_in_force({"torch._inductor.config": {"max_fusion_size": 1}})`."""
    for module_name, values in wanted.items():
        module = importlib.import_module(module_name)
        for key, value in values.items():
            if getattr(module, key) != value:
                setattr(module, key, value)
            if getattr(module, key) != value:  # a run without it would be taken for a run with it
                holder = held_by(module, key)
                sys.stderr.write(f"torchsleuth: cannot override: {module_name}.{key} is held by {holder}\n")
                raise SystemExit(2)


def force_at_captures(wanted: Settings) -> None:
    """Puts settings in force whenever Dynamo looks at a frame."""
    _at_frames(lambda _frame: put_in_force(wanted))


def force_at_backend_calls(wanted: Settings) -> None:
    """Puts settings in force whenever a captured graph goes to its backend."""

    def on_backend(call: hooks.BackendCall) -> Any:
        put_in_force(wanted)
        given = getattr(call.backend, "config", None)
        if hooks.is_inductor(call.backend) and isinstance(given, dict):
            # What mode= and options= stand for would be patched in over ours.
            inductor = wanted.get(INDUCTOR, {})
            given.update({key: value for key, value in inductor.items() if key in given})
        return call.as_without_us()

    hooks.hook_backend_calls(on_backend)


def force_at_inner_compiles(wanted: Settings) -> None:
    """Puts settings in force whenever an aten graph goes to Inductor, also for a backward compiled later."""

    def on_inner(call: hooks.InnerCompile) -> Any:
        put_in_force(wanted)
        return call.as_without_us()

    hooks.hook_inner_compiles(on_inner)


def backend_named(name: str) -> Any:
    """The backend of that name: torchsleuth's own also where their entry points are not installed."""
    if name.startswith("sleuth_"):
        return getattr(importlib.import_module("torchsleuth.torch_core.backends.catalog"), name)
    return hooks.lookup_backend(name)


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
    types: Any = importlib.import_module("torch._dynamo.types")
    # Frames of these functions are left alone together with all that is called from them.
    skip = types.FrameExecStrategy(types.FrameAction.SKIP, types.FrameAction.SKIP)

    def not_looked_into(original: Any) -> Any:
        def check_verbose(subject: Any, *args: Any, **kwargs: Any) -> Any:
            code = _code_of(subject)
            if code is not None and any(is_place(code, place) for place in places):
                return rules.SkipResult(True, "left eager by torchsleuth")
            return original(subject, *args, **kwargs)

        return check_verbose

    def left_alone(frame: Any) -> Any:
        if any(is_place(frame.f_code, place) for place in places):
            return types.ConvertFrameReturn(frame_exec_strategy=skip)
        return None

    replaced("torch._dynamo.trace_rules", "", "check_verbose", not_looked_into, needed=_NO_RULES)
    _at_frames(left_alone)


def trace_functions_whole(places: Sequence[Place]) -> None:
    """These functions are what `torch._dynamo.nonstrict_trace` makes of them: one step of the graph, inside unseen.

    A function that no name of its file leads to is a `NoSuchTarget`.
    """
    trace = importlib.import_module("torch._dynamo").nonstrict_trace
    waiting = list(places)

    def put_in(_frame: Any) -> None:
        while waiting:  # by the first frame the program has defined what it calls
            owner, name, function = _holder(waiting.pop())
            setattr(owner, name, trace(function))

    _at_frames(put_in)


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


def leave_modules_eager(paths: Sequence[str], classes: Sequence[str] = ()) -> None:
    """Submodules at these paths, and all of these classes (`nn.ReLU`), run as under `torch.compiler.disable`.

    A path is one below any module that is compiled.
    """
    found = [class_named(name) for name in classes]

    def leave_eager(frame: Any) -> None:
        for owner in (*found, *_modules_at(frame, paths)):
            if not getattr(owner.forward, "_torchdynamo_disable", False):
                owner.forward = torch.compiler.disable(owner.forward)

    _at_frames(leave_eager)


def class_named(name: str) -> Any:
    """The class of torch's modules with that name: `class_named("nn.ReLU")`."""
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not issubclass(found, torch.nn.Module):
        raise NoSuchTarget(f"this torch has no module class torch.{name}")
    return found


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
