"""Argument values of graph nodes as Python expressions.

Every kind of value is written in a form that evaluates to an equal value of the same type, or refused by
`Unprintable` with the reason: a graph is printed exactly or not at all.
"""

import enum
import math
from collections.abc import Callable, Mapping

import torch
from torch.fx.immutable_collections import immutable_dict, immutable_list

from torchsleuth.torch_core.graphs.names import Vocabulary, resolve
from torchsleuth.torch_internals.operators import writable_treespec


class Unprintable(Exception):
    """A graph holds something that Python source cannot express; `reason` is one plain sentence."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def expression(value: object, variables: Mapping[torch.fx.Node, str], words: Vocabulary) -> str:
    """The source of one argument.

    >>> expression((1, -0.0, None), {}, Vocabulary(set()))
    '(1, -0.0, None)'
    """
    write = _WRITERS.get(type(value))
    if write is not None:
        return write(value, lambda item: expression(item, variables, words))
    if isinstance(value, torch.fx.Node):
        return variables[value]
    text = _by_kind(value, lambda item: expression(item, variables, words), words)
    if text is None:
        raise Unprintable(_refusal(value))
    return text


def subscript(index: object, write: Callable[[object], str]) -> str:
    """What stands between the brackets of `x[...]`: slices and bare tuples as people write them.

    >>> subscript((slice(None), 0), repr)
    ':, 0'
    """
    if type(index) is tuple and index:
        return ", ".join(_subscript_item(item, write) for item in index) + ("," if len(index) == 1 else "")
    return _subscript_item(index, write)


def _subscript_item(item: object, write: Callable[[object], str]) -> str:
    if not isinstance(item, slice):
        return write(item)
    start, stop, step = ("" if part is None else write(part) for part in (item.start, item.stop, item.step))
    return f"{start}:{stop}:{step}" if step else f"{start}:{stop}"


_Write = Callable[[object], str]


def _float(value: float, _: _Write) -> str:
    if math.isnan(value):
        return "nan"
    return repr(value)


def _complex(value: complex, write: _Write) -> str:
    return f"complex({write(value.real)}, {write(value.imag)})"


def _tuple(value: tuple, write: _Write) -> str:
    return f"({write(value[0])},)" if len(value) == 1 else f"({', '.join(map(write, value))})"


def _list(value: list, write: _Write) -> str:
    return f"[{', '.join(map(write, value))}]"


def _dict(value: dict, write: _Write) -> str:
    return "{" + ", ".join(f"{write(key)}: {write(item)}" for key, item in value.items()) + "}"


def _slice(value: slice, write: _Write) -> str:
    return f"slice({write(value.start)}, {write(value.stop)}, {write(value.step)})"


def _own_repr(value: object, _: _Write) -> str:
    return repr(value)


def _device(value: torch.device, _: _Write) -> str:
    return f"torch.device({str(value)!r})"


_WRITERS: dict[type, Callable] = {
    **dict.fromkeys((type(None), bool, int, str, bytes, range, torch.dtype), _own_repr),
    **dict.fromkeys((torch.layout, torch.memory_format, torch.qscheme), _own_repr),
    type(Ellipsis): lambda value, write: "...",
    type(NotImplemented): _own_repr,
    float: _float,
    complex: _complex,
    tuple: _tuple,
    list: _list,
    dict: _dict,
    immutable_list: _list,
    immutable_dict: _dict,
    slice: _slice,
    torch.device: _device,
    torch.Size: lambda value, write: f"torch.Size({write(list(value))})",
    torch.finfo: lambda value, write: f"torch.finfo(torch.{value.dtype})",
    torch.iinfo: lambda value, write: f"torch.iinfo(torch.{value.dtype})",
}


def _by_kind(value: object, write: _Write, words: Vocabulary) -> str | None:
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return _constant_symbol(value)
    if isinstance(value, type):
        return words.spell(value)
    if isinstance(value, enum.Enum) or hasattr(type(value), "__members__"):
        return _enum(value, words)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        made_by = words.spell(type(value))
        return None if made_by is None else f"{made_by}({', '.join(map(write, value))})"
    if isinstance(value, set | frozenset) and type(value) in (set, frozenset):
        return f"{type(value).__name__}({write(sorted(value, key=repr))})"
    treespec = writable_treespec(value)
    if treespec is not None:
        words.imports["import torch.utils._pytree"] = None
        return treespec
    if callable(value) and not isinstance(value, torch.nn.Module | torch.Tensor):
        return words.spell(value)
    return None


def _enum(value: object, words: Vocabulary) -> str | None:
    name = getattr(value, "name", None)
    owner = words.spell(type(value))
    if owner is None or not isinstance(name, str) or not hasattr(type(value), name):
        return None
    found = resolve(f"{owner}.{name}") if owner not in words.references else getattr(type(value), name)
    return f"{owner}.{name}" if found == value else None


def _constant_symbol(value: object) -> str | None:
    """A symbolic number that is in truth a constant may be written; any other would lose its symbol."""
    if isinstance(value, torch.SymInt):
        known = value.node.maybe_as_int()
    elif isinstance(value, torch.SymFloat):
        known = value.node.maybe_as_float()
    else:
        known = value.node.maybe_as_bool()  # type: ignore[attr-defined]
    return None if known is None else _float(known, repr) if isinstance(known, float) else repr(known)


def _refusal(value: object) -> str:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return f"the symbolic number {value} stands in its arguments without a node that computes it"
    if isinstance(value, torch.Generator):
        return "a torch.Generator stands in its arguments, whose state Python source cannot hold"
    if isinstance(value, torch.Tensor):
        return "a tensor stands in its arguments; graphs hold tensors as attributes"
    return f"a value of type {kind} stands in its arguments, which Python source cannot hold"
