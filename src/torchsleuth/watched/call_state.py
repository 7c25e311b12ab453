"""All that a call of a function can leave behind, as flat leaves: its result, its arguments, and what it reaches.

What it reaches: the object it is a method of, its closure, the globals that it and the functions it names use,
attributes of their classes; modules with parameters, buffers and attributes. Leaves are plain values, so one process
can send them to another.
"""

from __future__ import annotations

import collections
import enum
import functools
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from torchsleuth.torch_core.compare.reference.trees import is_numpy

MOST_LEAVES = 20_000
MOST_FUNCTIONS = 200
# Tensors that are smaller are always kept; larger ones only where they are new or were written to.
SMALL_BYTES = 1 << 20
MOST_BYTES = 256 << 20

ITERATOR = "iterator"
_NUMBERS = (int, float, complex, bool)
_NAMES = (torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum, type)
_ATOMS: tuple[type, ...] = (str, bytes, type(None), range, slice, *_NUMBERS, *_NAMES)
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_OF_EVERY_MODULE = set(vars(torch.nn.Module())) - {"training"}
_TORCH, _STANDARD = str(Path(torch.__file__).parent), sysconfig.get_paths()["stdlib"]


@dataclass(frozen=True)
class Leaf:
    """One value: its type, what is compared of it, the numbers of a tensor, and what a person reads of it instead."""

    kind: str
    text: str = ""
    tensor: torch.Tensor | None = None
    shown: str = ""


Leaves = dict[str, Leaf]
Root = tuple[str, Any]


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
            yield f"{name} (closure)", cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
        for name in code.co_names:
            value = function.__globals__.get(name)
            if value is not None and not isinstance(value, types.ModuleType):
                yield f"{name} (global)", value
    for name, value in (function.__kwdefaults__ or {}).items():
        yield f"{name} (default)", value
    for position, value in enumerate(function.__defaults__ or ()):
        yield f"default {position}", value
    if vars(function):
        yield f"attributes of {function.__name__}", dict(vars(function))


def versions_of(roots: list[Root]) -> dict[int, int]:
    """How often each tensor was written to so far, by the tensor's identity."""
    found = tensors_of(roots).values()
    return {id(tensor): tensor._version for tensor in found if not tensor.is_inference()}


def tensors_of(roots: list[Root]) -> dict[str, torch.Tensor]:
    """Every tensor below `roots`, by its path.

    >>> list(tensors_of([("result", [1, torch.ones(2)])]))
    ['result[1]']
    """
    walk = _Walk({})
    for name, value in roots:
        walk.visit(name, value)
    return walk.tensors


def iterators_of(roots: list[Root]) -> dict[str, Iterator[Any]]:
    """Every iterator below `roots`, by its path.

    >>> list(iterators_of([("result", [1, iter([2])])]))
    ['result[1]']
    """
    walk = _Walk({})
    for name, value in roots:
        walk.visit(name, value)
    return walk.iterators


def leaves_of(roots: list[Root], before: Mapping[int, int]) -> Leaves:
    """Every value below `roots`; `before` is what `versions_of` said before the call.

    >>> leaves_of([("result", (1, [2.5]))], {})["result[1][0]"]
    Leaf(kind='float', text='2.5', tensor=None, shown='')
    """
    walk = _Walk(before)
    for name, value in roots:
        walk.visit(name, value)
    return walk.leaves


@dataclass
class _Walk:
    before: Mapping[int, int]
    leaves: Leaves = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    seen: dict[int, str] = field(default_factory=dict)
    iterators: dict[str, Iterator[Any]] = field(default_factory=dict)
    held: list[Any] = field(default_factory=list)
    room: int = MOST_BYTES

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
        size = value.numel() * value.element_size() if type(value) in _PLAIN_TENSORS else 0
        touched = version is None or self.before.get(id(value)) != version
        numbers = None
        if (touched or size <= SMALL_BYTES) and size <= self.room:
            numbers = _numbers(value)
            self.room -= size
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


def _numbers(value: torch.Tensor) -> torch.Tensor | None:
    plain = type(value) in _PLAIN_TENSORS and value.device.type == "cpu" and not value.is_quantized
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
        own = {n: v for n, v in vars(value).items() if n not in _OF_EVERY_MODULE and not _is_torchs(n)}
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
    return name.startswith(("_dynamo", "_torchdynamo", "__", "_compiled_call"))


def _atom(value: Any) -> str:
    if isinstance(value, type):
        return _name(value)
    return repr(value) if isinstance(value, _ATOMS) else _name(type(value))


def _name(kind: Callable[..., Any]) -> str:
    module = kind.__module__
    return kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"
