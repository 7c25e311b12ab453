"""The places every compile passes: the backend call after Dynamo, the inner compile after AOTAutograd,
and the frame callback around graph capture.

Each `hook_*` puts a handler there and returns a function that takes it away again. The handlers get what
torch was about to do as a value and decide whether and how it is done; arguments they do not know are
passed through, because these signatures grow from release to release.

Versions: `WrapBackendDebug`, `_compile_fx_inner` and `CatchErrorsWrapper` are there from 2.11 on; without them
`UnsupportedTorch` is raised.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from torchsleuth.torch_internals.places import UnsupportedTorch, all_of, replaced

OLDEST = (2, 11)
THE_REST = "; the rest is watched (torchsleuth doctor --torch-names)"
# What Dynamo calls for each Python frame that it may look at.
FRAME_CALLBACK = ("torch._dynamo.convert_frame", "CatchErrorsWrapper", "__call__")


def require_supported_torch() -> None:
    """Raises where this torch is older than what torchsleuth was written for."""
    if torch_release() < OLDEST:
        raise UnsupportedTorch(
            f"torch {torch.__version__} is older than 2.11, which torchsleuth needs; the program runs unwatched"
        )


def torch_release() -> tuple[int, ...]:
    """The first two numbers of this torch's version: `(2, 13)` of `2.13.0+cpu`."""
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2] if part.isdigit())


@dataclass(frozen=True)
class BackendCall:
    """Dynamo is about to hand one captured graph to a backend."""

    backend: Callable[..., Any]
    name: str
    options: dict[str, Any]
    graph: torch.fx.GraphModule
    inputs: Sequence[Any]
    compile: Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]

    def as_without_us(self) -> Callable[..., Any]:
        return self.compile(self.graph, self.inputs)


@dataclass(frozen=True)
class InnerCompile:
    """AOTAutograd is about to hand one aten graph to Inductor."""

    graph: torch.fx.GraphModule
    inputs: Sequence[Any]
    kwargs: dict[str, Any]
    compile: Callable[[torch.fx.GraphModule, Sequence[Any]], Any]

    def as_without_us(self) -> Any:
        return self.compile(self.graph, self.inputs)


@dataclass(frozen=True)
class FrameCapture:
    """Dynamo is about to look at one Python frame."""

    function: str
    file: str
    line: int
    as_without_us: Callable[[], Any] = field(repr=False)


def hook_backend_calls(handler: Callable[[BackendCall], Callable[..., Any]]) -> Callable[[], None]:
    """Routes every backend call of Dynamo through `handler`; returns the undo function.

    >>> undo = hook_backend_calls(lambda call: call.compile(call.graph, call.inputs))
    >>> undo()
    """

    def routed(original: Any) -> Any:
        def call(self: Any, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
            backend = self._torchdynamo_orig_backend
            options = backend_options(backend, kwargs)
            backend = user_backend(backend)
            name = getattr(self, "_compiler_name", None) or getattr(self, "__name__", type(backend).__name__)
            compile_it = lambda g, i: settled(original(self, g, i, **kwargs))  # noqa: E731
            return handler(BackendCall(backend, str(name), options, gm, example_inputs, compile_it))

        return call

    # Dynamo wraps every backend it is given, by name or as a callable, in this class.
    needed = (
        "torch {} wraps backends in another way: graphs as Dynamo captured them are not recorded" + THE_REST
    )
    return replaced("torch._dynamo.repro.after_dynamo", "WrapBackendDebug", "__call__", routed, needed=needed)


def settled(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """What a backend gave, ready to be wrapped: a graph's own `forward` in its final form.

    Dynamo puts the final one in place of that which still has to write its code; inside of a wrapper it would not find
    it, and every call would begin anew (3 microseconds).
    """
    graph = getattr(compiled, "__self__", None)
    if getattr(compiled, "__name__", "") == "_lazy_forward" and isinstance(graph, torch.fx.GraphModule):
        type(graph).force_recompile(graph)
        return graph.forward
    return compiled


def route_backend_overrides() -> None:
    """A backend that TORCH_COMPILE_OVERRIDE_BACKENDS names for one graph is called where every other is.

    Versions: 2.11 may not have the variable.
    """

    def wrapped(original: Any) -> Any:
        def override(*args: Any, **kwargs: Any) -> Any:
            debug = importlib.import_module("torch._dynamo.repro.after_dynamo")
            wrapper, backend = getattr(debug, "WrapBackendDebug", None), original(*args, **kwargs)
            return backend if backend is None or wrapper is None else wrapper(backend, None)

        return override

    replaced("torch._dynamo.output_graph", "", "get_backend_override_for_compile_id", wrapped)


def hook_inner_compiles(handler: Callable[[InnerCompile], Any]) -> Callable[[], None]:
    """Routes every graph that reaches Inductor's inner compile through `handler`; returns the undo function."""

    def routed(original: Any) -> Any:
        def call(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            compile_it = lambda g, i: original(g, i, *args, **kwargs)  # noqa: E731
            return handler(InnerCompile(gm, example_inputs, kwargs, compile_it))

        return call

    needed = "torch {} has another inner compile: graphs after AOTAutograd are not recorded" + THE_REST
    return replaced("torch._inductor.compile_fx", "", "_compile_fx_inner", routed, needed=needed)


def hook_frame_captures(handler: Callable[[FrameCapture], Any]) -> Callable[[], None]:
    """Routes every frame Dynamo looks at through `handler`; returns the undo function."""

    def routed(original: Any) -> Any:
        def call(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
            left_alone = answer_for_disabled(sys._getframe(1))
            if left_alone is not None:
                return left_alone
            code, capture = frame.f_code, lambda: original(self, frame, *args, **kwargs)
            return handler(FrameCapture(code.co_name, code.co_filename, code.co_firstlineno, capture))

        return call

    needed = "torch {} looks at frames in another way: failures of graph capture are not seen" + THE_REST
    return replaced(*FRAME_CALLBACK, routed, needed=needed)


def answer_for_disabled(caller: FrameType | None) -> Any:
    """What torch answers for a function under `torch.compiler.disable(recursive=False)`; None for any other.

    torch looks for the wrapper of that function right behind its own frames on the stack, where it finds ours.
    """
    convert_frame: Any = importlib.import_module("torch._dynamo.convert_frame")
    decorators = importlib.import_module("torch._dynamo.decorators")
    while caller is not None and caller.f_code.co_filename == convert_frame.__file__:
        caller = caller.f_back
    wrapper = getattr(decorators, "_nonrecursive_disable_wrapper_code", None)
    if caller is None or wrapper is None or caller.f_code is not wrapper:
        return None
    return convert_frame.ConvertFrameReturn(apply_to_code=False)


def hook_backward_runs(handler: Callable[[Callable[[], Any]], Any]) -> Callable[[], None]:
    """Routes every run of the autograd engine through `handler`; returns the undo function.

    AOTAutograd compiles and runs the backward of any backend in there, outside of every other seam.
    """

    def routed(original: Any) -> Any:
        return lambda *args, **kwargs: handler(lambda: original(*args, **kwargs))

    needed = "torch {} has no backward engine to hook into"
    return replaced("torch.autograd", "", "_engine_run_backward", routed, needed=needed)


def replace_callable(compiled: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    """Puts `wrap(f)` where the inner compiler's result keeps its boxed callable `f`.

    Inductor's own output object stays what it is, so that AOTAutograd finds everything else it reads from it.
    """
    if hasattr(compiled, "current_callable"):
        # Of a package of AOTInductor that is only written, there is none.
        if compiled.current_callable is not None:
            compiled.current_callable = wrap(compiled.current_callable)
        return compiled
    wrapped = wrap(compiled)
    wrapped._boxed_call = True  # type: ignore[attr-defined]
    return wrapped


def eager_random_numbers() -> contextlib.AbstractContextManager[Any]:
    """What Inductor compiles inside draws the random numbers eager would draw; else they differ by design."""
    import torch._inductor.config as inductor_config

    return inductor_config.patch(fallback_random=True)


def is_control_flow(error: BaseException) -> bool:
    """True for exceptions Dynamo raises through the backend to steer itself: they are not failures."""
    from torch._dynamo import exc
    from torch._subclasses import fake_tensor

    steering = [getattr(exc, name, ()) for name in ("RestartAnalysis", "SkipFrame", "Unsupported")]
    # Dynamo answers these with a graph break before the operator concerned.
    of_fakes = ("DataDependentOutputException", "DynamicOutputShapeException", "UnsupportedOperatorException")
    return isinstance(error, (*steering, *(getattr(fake_tensor, name, ()) for name in of_fakes)))


def is_inductor(backend: Any) -> bool:
    """True where `backend` is Inductor, however it was named."""
    if isinstance(backend, getattr(torch, "_TorchCompileInductorWrapper", ())):
        return True
    return getattr(backend, "__name__", "") == "inductor" and "torch._dynamo.backends" in str(
        getattr(backend, "__module__", "")
    )


def is_inner_compile(compiler: Any) -> bool:
    """True for Inductor's own inner compiler, which a script finds again without being told how."""
    return getattr(compiler, "__name__", "") in ("compile_fx_inner", "_compile_fx_inner")


def lookup_backend(backend: str | Callable[..., Any]) -> Callable[..., Any]:
    """The callable behind a backend's name; a callable is its own."""
    if backend == "inductor":
        # With this one object torch.compile keeps mode= and options= together.
        return torch._TorchCompileInductorWrapper(None, None, None)
    return registered_backend(backend)


def registered_backend(backend: str | Callable[..., Any]) -> Callable[..., Any]:
    """The callable that torch's registry has under a name; a callable is its own."""
    from torch._dynamo.backends.registry import lookup_backend

    return lookup_backend(backend)


def ships_with_torch(backend: Any) -> bool:
    """True where a backend can be found again by its registered name, without the user's program.

    >>> ships_with_torch(lambda gm, inputs: gm.forward)
    False
    """
    module = getattr(backend, "__module__", None) or type(backend).__module__
    return is_inductor(backend) or module == "torch" or module.startswith("torch.")


def user_backend(backend: Any) -> Any:
    """The callable the user gave to torch.compile, without the object torch.compile wraps around it."""
    return backend.compiler_fn if type(backend).__name__ == "_TorchCompileWrapper" else backend


def backend_options(backend: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """What the caller of torch.compile asked for: for Inductor the settings that mode= and options= stand for,
    for any other backend the keyword arguments it is called with."""
    if is_inductor(backend):
        return {**(getattr(backend, "config", None) or {}), **(kwargs.get("options") or {})}
    return {**(getattr(backend, "kwargs", None) or {}), **kwargs}


@dataclass(frozen=True)
class CudaGraphRun:
    """A function recorded as a CUDA graph is about to run, or the memory of results is about to be taken (`ends`).

    Each step of such a run is an object of torch's, on which `made_by` leaves a note; `held` are the notes of steps of
    which a result is still alive, with the words in which torch will speak of it.
    """

    manager: Any
    as_without_us: Callable[[], Any]
    ends: bool = False

    def made_by(self, note: Any) -> None:
        step = getattr(self.manager, "current_node", None)
        if step is not None:
            step.made_by = note

    def held(self) -> list[tuple[Any, str]]:
        step, found = getattr(self.manager, "current_node", None), []
        for each in getattr(step, "_path_from_root", ()):
            traces = getattr(each, "stack_traces", None) or [""] * len(each.outputs_weakrefs)
            for alive, trace in zip(each.outputs_weakrefs, traces):
                if alive is not None and alive() is not None and getattr(each, "made_by", None) is not None:
                    found.append((each.made_by, trace or ""))
        return found


def hook_cuda_graphs(handler: Callable[[CudaGraphRun], Any]) -> Callable[[], None]:
    """Shows `handler` each run of a CUDA graph, and each time that results of former runs lose their memory.

    2.11..2.15: both are methods of one class; where they are not there, nothing is seen.
    """

    def routed(original: Any, ends: bool) -> Any:
        return lambda self, *args, **kwargs: handler(
            CudaGraphRun(self, lambda: original(self, *args, **kwargs), ends)
        )

    place = "torch._inductor.cudagraph_trees", "CUDAGraphTreeManager"
    running = replaced(*place, "run", lambda run: routed(run, ends=False))
    ending = replaced(*place, "dealloc_current_path_weakrefs", lambda end: routed(end, ends=True))
    return all_of((running, ending))


# What torch says when such a result is used.
OVERWRITTEN = "has been overwritten by a subsequent run"


def current_compile_id() -> str | None:
    """The id torch gives the compile under way (`0/1`), also while a backward is compiled lazily."""
    from torch._guards import CompileContext

    found = CompileContext.current_compile_id()
    return None if found is None else str(found)


def failed_call(error: BaseException) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """The operator call (target, args, kwargs) whose fake execution failed during capture, if that is what failed.

    Dynamo runs each operator on fake tensors; the innermost of its frames that holds a node with the arguments
    it is run on is that call. (`run_node` in 2.11 and 2.12, `_get_fake_value_impl` where 2.13 hides that frame.)
    """
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        node, args, kwargs = map(frame.f_locals.get, ("node", "args", "kwargs"))
        if isinstance(node, torch.fx.Node) and isinstance(args, (tuple, list)) and isinstance(kwargs, dict):
            found = (node, tuple(args), dict(kwargs))
    return found


def target_name(node: Any) -> str:
    """The operator of a node as a person would write it: `torch.mm`, `Tensor.sin`, `aten.relu.default`."""
    target = getattr(node, "target", node)
    if isinstance(target, str):
        return f"Tensor.{target}"
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    module, name = getattr(target, "__module__", None), getattr(target, "__name__", str(target))
    if module is None or module.startswith("torch._C"):
        return f"torch.{name}"
    return f"{module}.{name}".replace("_operator.", "operator.")


def fails_in_eager(node: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Runs the operator of `node` on zeros shaped like its fake arguments: the error it gives, or None.

    An operator that fails on real tensors of these shapes and dtypes fails without the compiler, too.
    """
    from torch.utils import _pytree as pytree

    def real(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.zeros(
                [int(s) for s in value.shape], dtype=value.dtype, device=value.device, requires_grad=False
            )
        return int(value) if isinstance(value, torch.SymInt) else value

    if node.op not in ("call_function", "call_method"):
        return None
    try:
        real_args, real_kwargs = pytree.tree_map(real, (args, kwargs))
        if node.op == "call_method":
            getattr(real_args[0], node.target)(*real_args[1:], **real_kwargs)
        else:
            node.target(*real_args, **real_kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
