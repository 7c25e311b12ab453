"""All that a call of a function can leave behind, as flat leaves by path, which one process can send to another.

There is what the function reaches: its arguments, the object it is a method of, its closure, the globals that it and
the functions it names use, attributes of their classes; modules with parameters, buffers and attributes. And there is
what only a process that is there for nothing else can tell: how the call ended, what it printed, gradients, torch's
modes and random numbers, and what comes out of iterators that it returned.
"""

from __future__ import annotations

import collections
import enum
import functools
import io
import re
import signal
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import GeneratorType
from typing import Any

import torch

from torchsleuth.core.processes.sealed import run_openmp_alone
from torchsleuth.torch_core.compare.reference.rng import RngState, restore_rng
from torchsleuth.torch_core.compare.reference.trees import is_numpy
from torchsleuth.torch_internals.compiled_calls import CompiledCall, is_dynamos_own
from torchsleuth.torch_internals.modes import outside_all_modes

# Paths, where they are no expression of a program: how the call ended, what is known of a function by name, and what
# only a call in a process of its own can tell.
CALL = "the call"
CLOSURE, GLOBAL, DEFAULT = " (closure)", " (global)", " (default)"
PRINTED = "what it prints"
GRADIENT = "the gradient of "
RANDOM_NUMBERS = "the state of torch's random numbers"
# Of an iterator: so many items are looked at, then what it returns at its end, or how else it ends.
MOST_ITEMS = 64
ITEMS, RETURNED, ENDED = "list({})", "the return value of {}", "the end of {}"

MOST_LEAVES = 20_000
MOST_FUNCTIONS = 200
# Tensors that are smaller are always kept; larger ones only where they are new or were written to.
SMALL_BYTES = 1 << 20
MOST_BYTES = 256 << 20

ITERATOR = "iterator"
_NUMBERS = (int, float, complex, bool)
_NAMES = (torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum, type)
_ATOMS: tuple[type, ...] = (str, bytes, type(None), range, slice, *_NUMBERS, *_NAMES)
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
# Attributes that are no state of the program's: what every module has, and what torch writes on objects and functions.
OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))
_NO_STATE = OF_EVERY_MODULE - {"training"}
MARKS_OF_TORCH = ("_dynamo", "_torchdynamo", "_is_torch_compile", "_compiled_call")
_TORCH, _STANDARD = str(Path(torch.__file__).parent), sysconfig.get_paths()["stdlib"]


class CannotRepeat(BaseException):
    """A call cannot be made again to be compared; says why. No `except Exception` of the user's sees it."""


@dataclass(frozen=True)
class Leaf:
    """One value: its type, what is compared of it, the numbers of a tensor, and what a person reads of it instead."""

    kind: str
    text: str = ""
    tensor: torch.Tensor | None = None
    shown: str = ""


Leaves = dict[str, Leaf]
Root = tuple[str, Any]


def iterator_of(path: str) -> str | None:
    """The path of the iterator that something came out of.

    >>> iterator_of("list(result[1])[0].x"), iterator_of("the return value of result"), iterator_of("result")
    ('result[1]', 'result', None)
    """
    found = re.match(r"list\((.*?)\)(?:[.\[]|$)|the (?:return value|end) of (.*?)(?:$)", path)
    return found and (found[1] or found[2])


def is_below(path: str, above: str) -> bool:
    """Whether a value is part of another one, by their paths.

    >>> is_below("result[0].a", "result[0]"), is_below("result[01]", "result[0")
    (True, False)
    """
    return path.startswith(above) and path[len(above) : len(above) + 1] in ("", "[", ".")


def user_function(function: Any) -> types.FunctionType | None:
    """The function someone wrote, of what was given to torch.compile: of a module that is its `forward`."""
    for _ in range(20):
        owner = getattr(function, "__self__", None)
        if isinstance(function, torch.nn.Module):
            function = function.forward
        elif isinstance(owner, torch.nn.Module) and function.__name__ in ("__call__", "_wrapped_call_impl"):
            function = owner.forward
        elif isinstance(function, types.MethodType):
            function = function.__func__
        elif isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif isinstance(function, types.FunctionType):
            return function
        else:
            function = type(function).__call__
    return None


def roots_of(function: Any, args: Any, kwargs: Mapping[str, Any]) -> list[Root]:
    """What a call of `function` can change, by the names a person knows it under.

    >>> [name for name, _ in roots_of(len, ([1],), {"key": 2})]
    ['args[0]', "kwargs['key']"]
    """
    found: list[Root] = [(f"args[{i}]", value) for i, value in enumerate(args)]
    found += [(f"kwargs[{name!r}]", value) for name, value in kwargs.items()]
    seen: set[int] = set()
    waiting: collections.deque[Any] = collections.deque([function])
    while waiting and len(seen) < MOST_FUNCTIONS:
        current = waiting.popleft()
        if id(current) in seen:
            continue
        seen.add(id(current))
        for name, value in _reached_from(current):
            if callable(value):
                waiting.append(value)
            if not callable(value) or isinstance(value, torch.nn.Module):
                found.append((name, value))
    return found


def _reached_from(function: Any) -> Iterator[Root]:
    """What a callable can reach by names of its own: functions and classes to look into, and values."""
    if wrapped := getattr(function, "__wrapped__", None):
        yield "wrapped", wrapped
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, (type, types.ModuleType)):
        yield "self", owner
        yield "method", getattr(function, "__func__", None)
    if isinstance(function, torch.nn.Module):
        yield "method", user_function(function)
    elif isinstance(function, functools.partial):
        yield "function", function.func
    elif isinstance(function, types.FunctionType) and not _of_a_library(function.__code__.co_filename):
        yield from _names_of(function)
    elif isinstance(function, type) and not _of_a_library(_file_of(function)):
        for name, value in vars(function).items():
            if not name.startswith("__"):
                plain = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
                yield f"{function.__name__}.{name}", plain


def _file_of(kind: type) -> str | None:
    module = sys.modules.get(kind.__module__)
    return getattr(module, "__file__", None) or ("" if kind.__module__ == "__main__" else None)


def _of_a_library(file: str | None) -> bool:
    """Whether code is Python's own or torch's; other libraries are looked into like the user's files."""
    standard = file is not None and file.startswith(_STANDARD) and "site-packages" not in file
    return file is None or standard or file.startswith(_TORCH)


def _names_of(function: types.FunctionType) -> Iterator[Root]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield name + CLOSURE, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
        for name in code.co_names:
            value = function.__globals__.get(name)
            if value is not None and not isinstance(value, types.ModuleType):
                yield name + GLOBAL, value
    for name, value in (function.__kwdefaults__ or {}).items():
        yield name + DEFAULT, value
    for position, value in enumerate(function.__defaults__ or ()):
        yield f"default {position}", value
    if vars(function):
        yield f"attributes of {function.__name__}", dict(vars(function))


def leaves_of(roots: Iterable[Root], before: Mapping[int, int], most: int = MOST_BYTES) -> Leaves:
    """Every value below `roots`; `before` is how often each tensor, by its identity, was written to before the call.
    Numbers of tensors are kept up to so many bytes.

    >>> leaves_of([("result", (1, [2.5]))], {})["result[1][0]"]
    Leaf(kind='float', text='2.5', tensor=None, shown='')
    """
    return walked(roots, before, most).leaves


def versions_below(roots: Iterable[Root]) -> dict[int, int]:
    """How often each tensor below `roots` was written to, without a hold on them: the call may be what lets go of them.

    >>> list(versions_below([("x", torch.ones(2))]).values())
    [0]
    """
    return {id(t): t._version for t in walked(roots).tensors.values() if not t.is_inference()}


def walked(roots: Iterable[Root], before: Mapping[int, int] | None = None, most: int = MOST_BYTES) -> _Walk:
    """All that is below `roots`, tensors and iterators by their paths as well.

    >>> found = walked([("result", [1, torch.ones(2), iter([2])])])
    >>> list(found.tensors), list(found.iterators)
    (['result[1]'], ['result[2]'])
    """
    walk = _Walk(before or {}, bytes_left=most)
    for name, value in roots:
        walk.visit(name, value)
    return walk


@dataclass
class _Walk:
    before: Mapping[int, int]
    leaves: Leaves = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    seen: dict[int, str] = field(default_factory=dict)
    iterators: dict[str, Iterator[Any]] = field(default_factory=dict)
    held: list[Any] = field(default_factory=list)
    bytes_left: int = MOST_BYTES

    def visit(self, path: str, value: Any) -> None:
        if len(self.leaves) >= MOST_LEAVES or path in self.leaves:
            return
        if isinstance(value, torch.Tensor):
            self._tensor(path, value)
            return
        if is_numpy(value):
            self.leaves[path] = _numpy_leaf(value)
            return
        kind, text, parts = _taken_apart(value)
        if parts is not None and not isinstance(value, tuple):
            first = self.seen.setdefault(id(value), path)
            self.held.append(value)  # an identity means nothing once its object is gone
            if first != path:
                self.leaves[path] = Leaf("same object", first)
                return
        if kind == ITERATOR and id(value) not in map(id, self.iterators.values()):
            self.iterators[path] = value
        self.leaves[path] = Leaf(kind, text, shown=_shown(value))
        for suffix, part in parts or ():
            self.visit(path + suffix, part)

    def _tensor(self, path: str, value: torch.Tensor) -> None:
        version = None if value.is_inference() else value._version
        self.held.append(value)
        self.tensors[path] = value
        grad = ", requires grad" if value.requires_grad else ""
        dtype = str(value.dtype).removeprefix("torch.")
        text = f"{dtype} tensor of shape {_shape(value)}{grad}"
        size = value.numel() * value.element_size() if type(value) in PLAIN_TENSORS else 0
        touched = version is None or self.before.get(id(value)) != version
        numbers = None
        if (touched or size <= SMALL_BYTES) and size <= self.bytes_left:
            numbers = numbers_of(value)
            self.bytes_left -= size
        self.leaves[path] = Leaf(_name(type(value)), text, numbers)
        for name, attribute in getattr(value, "__dict__", {}).items():
            if not name.startswith("_"):
                self.visit(f"{path}.{name}", attribute)
        if value.is_leaf and value.requires_grad and value.grad is not None:
            self.visit(f"{path}.grad", value.grad)


def _shape(value: torch.Tensor) -> str:
    try:
        return str(tuple(value.shape))
    except RuntimeError:  # a nested tensor
        return "(nested)"


def numbers_of(value: torch.Tensor) -> torch.Tensor | None:
    plain = type(value) in PLAIN_TENSORS and value.device.type in ("cpu", "cuda") and not value.is_quantized
    if not plain or value.layout != torch.strided:
        return None
    return value.detach().resolve_conj().resolve_neg()


def _numpy_leaf(value: Any) -> Leaf:
    """numpy's scalars are arrays without dimensions here: torch.compile makes those of them."""
    try:
        numbers = torch.tensor(
            value.tolist(), dtype=torch.float64 if value.dtype.kind == "f" else None, device="cpu"
        )
    except (TypeError, ValueError, RuntimeError):
        numbers = None
    return Leaf("numpy", f"{value.dtype} array of shape {value.shape}", numbers)


def _taken_apart(value: Any) -> tuple[str, str, list[tuple[str, Any]] | None]:
    """The type of a value, its text, and its parts by the suffix of their path; no parts for what is a leaf."""
    name = _name(type(value))
    if isinstance(value, _ATOMS):
        return name, _atom(value), None
    if isinstance(value, Mapping):
        items = list(value.items())
        keys = [repr(key) if isinstance(key, _ATOMS) else f"#{i}" for i, (key, _) in enumerate(items)]
        parts = [(f"[{key}]", item) for key, (_, item) in zip(keys, items)]
        return name, f"with the keys {', '.join(keys)}", parts
    if isinstance(value, (set, frozenset)):
        return name, f"of {sorted(_atom(item) for item in value)}", []
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return name, "", [(f".{field}", getattr(value, field)) for field in value._fields]
    if isinstance(value, (list, tuple, collections.deque)):
        return name, f"of {len(value)} items", [(f"[{i}]", item) for i, item in enumerate(value)]
    if hasattr(value, "__next__"):
        return ITERATOR, "", None
    if isinstance(value, torch.nn.Module):
        own = {n: v for n, v in vars(value).items() if n not in _NO_STATE and not _is_torchs(n)}
        state = {**value._parameters, **value._buffers, **value._modules, **own}
        return name, "", [(f".{n}", part) for n, part in state.items()]
    if callable(value) or not hasattr(value, "__dict__"):
        return "callable" if callable(value) else name, "", None
    if _of_a_library(_file_of(type(value))) and not isinstance(value, torch.optim.Optimizer):
        return name, "", None
    return name, "", [(f".{n}", part) for n, part in vars(value).items() if not _is_torchs(n)]


def _shown(value: Any) -> str:
    """A short sequence of plain values, written out."""
    short = isinstance(value, (list, tuple, collections.deque)) and len(value) <= 16
    if short and all(isinstance(item, _ATOMS) for item in value):
        return f"of [{', '.join(_atom(item) for item in value)}]"
    return ""


def _is_torchs(name: str) -> bool:
    return name.startswith((*MARKS_OF_TORCH, "__"))


def _atom(value: Any) -> str:
    if isinstance(value, type):
        return _name(value)
    return repr(value) if isinstance(value, _ATOMS) else _name(type(value))


def _name(kind: Callable[..., Any]) -> str:
    module = kind.__module__
    return kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"


def numbers_to_come() -> torch.Tensor:
    """The next random numbers of torch's, which stay to be drawn: the state itself holds bytes that nobody wrote to.

    >>> torch.equal(numbers_to_come(), torch.rand(8))
    True
    """
    return torch.rand(8, generator=torch.Generator().set_state(torch.get_rng_state()))


# ---- what a call leaves, made in a process that is there for nothing else


# What it may take to look into iterators.
DRAIN_SECONDS = 10.0


def leaves_after(call: CompiledCall, run: Callable[[], Any], rng: RngState) -> Leaves:
    """Makes the call; what it leaves behind."""
    if not run_openmp_alone():
        torch.set_num_threads(1)  # the other threads did not come along
    # oneDNN's kernels are made for so many threads, which wait for each other.
    torch.backends.mkldnn.enabled = False
    before = versions_below(roots_of(call.function, call.args, call.kwargs))
    printed = sys.stdout = io.StringIO()
    restore_rng(rng)  # Python's own generator is seeded anew in every fork
    result: Any = None
    ended = Leaf("returns")
    try:
        result = run()
    except Exception as error:
        if is_dynamos_own(error):
            raise CannotRepeat("Dynamo does not capture it") from error
        ended = Leaf(f"raises {type(error).__name__}", str(error)[:200])
    grad = torch.is_grad_enabled()
    with outside_all_modes():
        roots = roots_of(call.function, call.args, call.kwargs)
        leaves = {
            CALL: ended,
            **leaves_of([*roots, ("result", result)], before),
            PRINTED: Leaf("str", repr(re.sub(r"0x[0-9a-f]+", "0x", printed.getvalue()))),
            RANDOM_NUMBERS: Leaf("Tensor", "", torch.get_rng_state()),
            "torch.is_grad_enabled()": Leaf("bool", str(grad)),
            "torch.get_default_dtype()": Leaf("torch.dtype", str(torch.get_default_dtype())),
        }
        leaves.update(_gradients(roots, result) if grad else {})
    # Last, for it runs what the program would run after the call, and in the modes of the program.
    return {**leaves, **_drained(result)}


def _gradients(roots: list[tuple[str, Any]], result: Any) -> Leaves:
    """The gradients of the result with respect to what it was made from, where it has any."""
    found = walked([("result", result)]).tensors.values()
    outputs = [tensor for tensor in found if tensor.requires_grad and tensor.is_floating_point()]
    inputs = {path: tensor for path, tensor in walked(roots).tensors.items() if tensor.requires_grad}
    # What an earlier call made is as far back as this one goes.
    made_before = {path: tensor for path, tensor in inputs.items() if not tensor.is_leaf}
    wanted = made_before or inputs
    if not outputs or not wanted:
        return {}
    try:
        scales = [torch.linspace(0.5, 1.5, o.numel(), device=o.device).reshape(o.shape) for o in outputs]
        total = [(o * scale).sum() for o, scale in zip(outputs, scales)]
        grads = torch.autograd.grad(total, list(wanted.values()), allow_unused=True)
    except Exception:  # a call that went through its own backward has none left
        return {}
    return {GRADIENT + p: Leaf("Tensor", "", g) for p, g in zip(wanted, grads) if g is not None}


def _drained(result: Any) -> Leaves:
    """What comes out of the iterators of a result, which nobody needs afterwards."""
    # Dynamo gives such iterators for others; what others do when they are asked for an item, only they know.
    found = {
        path: iterator
        for path, iterator in walked([("result", result)]).iterators.items()
        if isinstance(iterator, GeneratorType) or type(iterator).__module__ in ("builtins", "itertools")
    }
    if not found:
        return {}
    signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, DRAIN_SECONDS)
    try:
        return {key: leaf for path, it in found.items() for key, leaf in _drain(path, it).items()}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _too_long(*_: Any) -> None:
    raise CannotRepeat(f"the iterator that it returns takes more than {DRAIN_SECONDS:.0f} s")


def _drain(path: str, iterator: Iterator[Any]) -> Leaves:
    leaves: Leaves = {}
    returned: Any = None
    how = Leaf("returns")
    try:
        for place in range(MOST_ITEMS):
            item = next(iterator)
            with outside_all_modes():
                leaves |= {
                    # A generator may write to what it has given away.
                    at: leaf if leaf.tensor is None else replace(leaf, tensor=leaf.tensor.clone())
                    for at, leaf in leaves_of([(f"{ITEMS.format(path)}[{place}]", item)], {}).items()
                }
    except StopIteration as end:
        returned = end.value
    except Exception as error:
        how = Leaf(f"raises {type(error).__name__}", str(error)[:200])
    with outside_all_modes():
        return {**leaves, **leaves_of([(RETURNED.format(path), returned)], {}), ENDED.format(path): how}


def values_only(leaves: Leaves) -> Leaves:
    """Of what a call leaves behind, the values: without how it ended, what it printed, modes and gradients.

    >>> list(values_only({CALL: Leaf("returns"), "result": Leaf("int", "1")}))
    ['result']
    """
    others = ("the ", "torch.", "list(", PRINTED)
    return {path: leaf for path, leaf in leaves.items() if not path.startswith(others)}


def packed(leaves: Mapping[str, Leaf]) -> bytes:
    """Leaves as one process sends them to another: `unpacked(packed(leaves)) == leaves`."""
    buffer = io.BytesIO()
    torch.save({path: tuple(vars(leaf).values()) for path, leaf in leaves.items()}, buffer)
    return buffer.getvalue()


def unpacked(content: bytes) -> Leaves:
    """The leaves that another process has sent."""
    sent = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return {path: Leaf(*parts) for path, parts in sent.items()}
