"""Torch's own switch points, under our control and in this process only: what of the compiler is off, and what it did.

The compiler asks one function before every decomposition, graph pass, lowering and CUDA graph whether to leave it out.
We answer in its place, so that nothing is written where another process could read it. Fusion, inlining, single
patterns and decompositions that are kernels have no such question; there we stand in front of what decides.

A pattern knows the function it was made from in one of three ways: as the handler that it calls, by a name given when
it was registered, or only as a variable of the check that it asks. Whether a match is used is decided by that check,
which may fail itself: so that is where a pattern is watched and left out.

Versions: `CompilerBisector.disable_subsystem` is asked in 2.11 to 2.15; what a version lacks is listed as missing.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchsleuth.torch_internals.decompositions import python_decompositions
from torchsleuth.torch_internals.places import replaced

PATTERNS, INLINING, FUSION = "patterns", "inlining", "fusion"
# What autotuning chooses between: templates for one call, and configurations of one of the user's Triton kernels.
TEMPLATES, CONFIGURATIONS = "templates", "configurations"
# Left out by name or altogether: which of them run is not known before they do.
IN_PYTHON = "python_decompositions"

Window = Mapping[str, Any]


@dataclass
class Applied:
    """What was asked about, in order and by subsystem, and which switches this torch lacks."""

    names: dict[str, list[str]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def is_off(window: Window | None, place: int, names: tuple[str, ...]) -> bool:
    """Whether the application at `place`, known under these names, is to be left out.

    `{}` leaves out all; `keep` the ones from that number on; `skip` those with these numbers; `names` those so called;
    `but` is never left out.

    >>> is_off({"keep": 2}, 2, ("relu",)), is_off({"names": ["relu"]}, 0, ("relu_1", "relu"))
    (True, True)
    """
    if window is None or any(name in window.get("but", ()) for name in names):
        return False
    if not any(key in window for key in ("keep", "skip", "names")):
        return True
    return (
        place >= window.get("keep", float("inf"))
        or place in window.get("skip", ())
        or any(name in window.get("names", ()) for name in names)
    )


@contextlib.contextmanager
def switched(off: Mapping[str, Window]) -> Iterator[Applied]:
    """Leaves out what `off` says, by subsystem, and records all that the compiler applied or was kept from applying.

    Use: `with switched({"post_grad_passes": {"names": ["remove_noop_ops"]}}) as applied: compile_it()`.
    """
    applied = Applied()

    def leave_out(subsystem: str, *names: str) -> bool:
        done = applied.names.setdefault(subsystem, [])
        done.append(names[0])
        return is_off(off.get(subsystem), len(done) - 1, names)

    with contextlib.ExitStack() as stack:
        for module, owner, name, make in _HOOKS:
            put_in = replaced(module, owner, name, functools.partial(make, leave_out=leave_out))
            stack.enter_context(put_in)
            if not put_in.there:
                applied.missing.append(f"{owner}.{name}")
        used = applied.names.setdefault(IN_PYTHON, [])
        window = off.get(IN_PYTHON)
        stack.enter_context(python_decompositions(used.append, lambda name: is_off(window, 0, (name,))))
        yield applied


LeaveOut = Callable[..., bool]


def _answering(_original: Any, leave_out: LeaveOut) -> Any:
    def disable_subsystem(
        _cls: type, _backend: str, subsystem: str, what: Callable[[], str] | None = None
    ) -> bool:
        name = what() if what is not None else subsystem
        if subsystem == "lowerings":
            return leave_out(subsystem, *_lowering_names(name))
        return leave_out(subsystem, _op_name(name))

    return classmethod(disable_subsystem)


def _op_name(text: str) -> str:
    """`aten.exp.default` of the way torch prints an operator; any other text as it is.

    >>> _op_name("<OpOverload(op='aten.exp', overload='default')>")
    'aten.exp.default'
    """
    if not text.startswith("<OpOverload"):
        return text
    parts = text.split("'")
    return f"{parts[1]}.{parts[3]}" if len(parts) > 3 else text


def _lowering_names(node_name: str) -> tuple[str, ...]:
    """A lowering as `aten.relu.default at relu_1`, and by its operator and its node alone."""
    virtual: Any = importlib.import_module("torch._inductor.virtualized").V
    node = getattr(virtual, "current_node", None)
    if node is None:
        return (node_name,)
    return f"{node.target} at {node_name}", str(node.target), node_name


def _fusing(original: Any, leave_out: LeaveOut) -> Any:
    def can_fuse(self: Any, one: Any, other: Any, *args: Any, **kwargs: Any) -> bool:
        if not original(self, one, other, *args, **kwargs):
            return False
        return not leave_out(FUSION, f"{_with_nodes(one)} + {_with_nodes(other)}")

    return can_fuse


# What the name of a kernel says of one to which others are fused as an epilogue.
OF_A_TEMPLATE = " of a template"


def _with_nodes(kernel: Any) -> str:
    """A kernel before it is fused, and the nodes it computes: `op3 (mul_1, add_2)`."""
    found = {
        origin.name
        for part in kernel.get_nodes()
        for origin in (getattr(part.node, "origins", None) or ())
        if origin.op.startswith("call_")
    }
    name = f"{kernel.get_name()} ({', '.join(sorted(found))})" if found else str(kernel.get_name())
    return f"{name}{OF_A_TEMPLATE}" if kernel.is_template() else name


def nodes_fused(name: str) -> tuple[str, ...]:
    """The nodes of the two kernels that a fusion joins, from what the fusion is called.

    >>> nodes_fused("op0 (relu) + op1 (mul, add)")
    ('relu', 'mul', 'add')
    """
    return tuple(node for inside in re.findall(r"\(([^)]*)\)", name) for node in inside.split(", "))


def _inlining(original: Any, leave_out: LeaveOut) -> Any:
    def run_node(self: Any, node: Any) -> Any:
        result = original(self, node)
        realize = getattr(result, "realize", None)
        if realize is not None and node.op == "call_function" and leave_out(INLINING, node.name):
            realize()
        return result

    return run_node


def _matching(original: Any, leave_out: LeaveOut) -> Any:
    def make(entry: Any, own: Any) -> Any:
        def extra_check(match: Any) -> Any:
            name = pattern_name(entry)
            function = name.rpartition(": ")[2]
            if leave_out(PATTERNS, f"{name} at {match.nodes[-1].name}", name, function):
                return False
            return own(match)

        return extra_check

    return asking_instead(make)(original)


def _choosing(original: Any, leave_out: LeaveOut) -> Any:
    """A call's kernel is one of torch's own or made from a template; where all templates are off, it needs another."""

    def select(self: Any, name: str, choices: Any, *args: Any, **kwargs: Any) -> Any:
        def is_template(choice: Any) -> bool:
            return not any("ExternKernel" in each.__name__ for each in type(choice).__mro__)

        kept = [
            choice
            for choice in choices
            if not is_template(choice)
            or not leave_out(TEMPLATES, f"{choice.name} for {name}", template_of(choice.name))
        ]
        return original(self, name, kept or choices, *args, **kwargs)

    return select


def template_of(choice: str) -> str:
    """The template that a choice was made from, which has a number.

    >>> template_of("triton_mm_12 for mm"), template_of("triton_flex_attention_0")
    ('triton_mm', 'triton_flex_attention')
    """
    return choice.partition(" for ")[0].rstrip("0123456789").rstrip("_")


def _configuring(original: Any, leave_out: LeaveOut) -> Any:
    def define(
        self: Any, kernel: Any, configs: Any, kwargs: Any, restored: Any, zeroed: Any, grids: Any, *more: Any
    ) -> Any:
        name = getattr(kernel, "__name__", "kernel")
        kept = [i for i, each in enumerate(configs) if not leave_out(CONFIGURATIONS, f"{name}: {each}")]
        if kept and len(grids) == len(configs):
            configs, grids = [configs[i] for i in kept], [grids[i] for i in kept]
        return original(self, kernel, configs, kwargs, restored, zeroed, grids, *more)

    return define


_HOOKS: tuple[tuple[str, str, str, Callable[..., Any]], ...] = (
    ("torch._inductor.compiler_bisector", "CompilerBisector", "disable_subsystem", _answering),
    ("torch._inductor.scheduler", "Scheduler", "can_fuse", _fusing),
    ("torch._inductor.graph", "GraphLowering", "run_node", _inlining),
    ("torch._inductor.pattern_matcher", "PatternMatcherPass", "apply", _matching),
    ("torch._inductor.select_algorithm", "AlgorithmSelectorCache", "__call__", _choosing),
    (
        "torch._inductor.codegen.wrapper",
        "PythonWrapperCodegen",
        "define_user_defined_triton_kernel",
        _configuring,
    ),
)


Check = Callable[[Any], Any]


def pattern_name(entry: Any) -> str:
    """File and function of torch's source that a registered pattern comes from: `fuse_attention: _sfdp_pattern_5`."""
    function = _function(entry)
    if function is None:
        return str(getattr(entry, "pattern_name", None) or type(entry).__name__)
    module = str(getattr(function, "__module__", "") or "").rpartition(".")[2]
    name = str(getattr(function, "__name__", type(entry).__name__))
    made_by, inside, own = str(getattr(function, "__qualname__", name)).rpartition(".<locals>.")
    # A function made inside another is known by the one that made it, unless it was given a name.
    if inside and own == name:
        name = made_by.partition(".<locals>.")[0]
    return f"{module}: {name}" if module else name


def _function(entry: Any) -> Any:
    """What the pattern was written as: a function that handles a match, or one that is searched for."""
    handler = getattr(entry, "handler", None)
    if handler is None:
        handler = _variables(inspect.unwrap(entry.extra_check)).get("search_fn")
    while isinstance(handler, functools.partial):
        handler = handler.func
    return handler


def _variables(function: Any) -> dict[str, Any]:
    """What a function made inside another sees of it."""
    if not inspect.isfunction(function):
        return {}
    return dict(inspect.getclosurevars(function).nonlocals)


def asking_instead(make: Callable[[Any, Check], Check]) -> Callable[[Any], Any]:
    """For the `apply` of a pass: inside, every pattern asks `make(entry, its check)` whether a match is used."""

    def made(original: Any) -> Any:
        def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
            with checks_replaced(self, make):
                return original(self, *args, **kwargs)

        return apply

    return made


@contextlib.contextmanager
def checks_replaced(patterns: Any, make: Callable[[Any, Check], Check]) -> Iterator[None]:
    """Every pattern of a pass asks `make(entry, its check)` whether a match is used.

    Use: `with checks_replaced(a_pass, lambda entry, check: lambda match: False): a_pass_is_applied()`.
    """
    before = {id(entry): (entry, entry.extra_check) for entry in entries_of(patterns)}
    for entry, check in before.values():
        entry.extra_check = functools.wraps(check)(make(entry, check))
    try:
        yield
    finally:
        for entry, check in before.values():
            entry.extra_check = check


def entries_of(patterns: Any) -> list[Any]:
    """The registered patterns of a `PatternMatcherPass`, in order."""
    return [entry for entries in patterns.patterns.values() for entry in entries]
