"""Dataclasses as JSON and back, by the types of their fields: the one codec of messages and of files.

Reading checks every type, because a case may come from a stranger; a key that it does not know is left out, because a
document may come from a later torchsleuth, and a field that is missing has its default, because it may come from an
earlier one. A class whose document is not simply its fields has `to_json` and a static `from_json` of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

# A JSON object whose values nobody has checked: read by `from_json`, or key by key where any key may be missing.
Document = Mapping[str, Any]


class WrongShape(ValueError):
    """A document that does not have the shape of the dataclass it should be."""


def to_json(value: object) -> Any:
    """A value as `json.dumps` takes it: the fields of a dataclass, a list for a tuple, the name of an enum's member.

    >>> to_json((1, Path("a")))
    [1, 'a']
    """
    own = getattr(value, "to_json", None)
    return own() if own is not None and not isinstance(value, type) else plain(value)


def plain(value: object) -> Any:
    """As `to_json`, but a dataclass by its fields even where it has a `to_json`, which may begin with this."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            name: given if is_plain else to_json(given)
            for name, _, is_plain, _ in _fields(typing.cast(Any, type(value)))
            for given in [getattr(value, name)]
        }
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return value.name
    return str(value) if isinstance(value, Path) else value


def from_json(cls: type[T], doc: object, path: str = "") -> T:
    """An instance from a document; raises `WrongShape`.

    >>> from_json(dataclasses.make_dataclass("Verified", [("times", int, 1)]), {"times": 3, "later": None}).times
    3
    """
    if not isinstance(doc, Mapping):
        raise WrongShape(f"{path.rstrip('.')!r} is not an object" if path else "it is not an object")
    values = {}
    for name, kind, _, required in _fields(typing.cast(Any, cls)):
        given = doc.get(name, dataclasses.MISSING)
        if given is not dataclasses.MISSING:
            values[name] = _value(kind, given, f"{path}{name}")
        elif required:
            raise WrongShape(f"{path + name!r} is missing")
    return cls(**values)


@functools.cache
def _fields(cls: type) -> tuple[tuple[str, Any, bool, bool], ...]:
    """Of each field its name, its type, whether it is JSON as it stands, and whether it must be given."""
    hints = typing.get_type_hints(cls)
    return tuple(
        (
            each.name,
            hints[each.name],
            _is_plain(hints[each.name]),
            each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING,
        )
        for each in dataclasses.fields(typing.cast(Any, cls))
    )


def _is_plain(kind: Any) -> bool:
    args = typing.get_args(kind)
    if typing.get_origin(kind) in (types.UnionType, Mapping):
        return all(map(_is_plain, args))
    return kind in (str, int, float, bool, types.NoneType, Any)


def _value(kind: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind in (Any, object):
        return value
    if origin is types.UnionType:
        if value is None and types.NoneType in args:
            return None
        return _value(next(a for a in args if a is not types.NoneType), value, where)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise WrongShape(f"{where!r} is not a list")
        return tuple(_items(args, value, where))
    if origin is Mapping:
        if not isinstance(value, Mapping):
            raise WrongShape(f"{where!r} is {type(value).__name__}, not object")
        if args[1:] in ((Any,), (object,)):
            return value
        return {key: _value(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(kind):
        own = getattr(kind, "from_json", None)
        if own is not None and isinstance(value, Mapping):
            return own(value)
        return from_json(typing.cast(type, kind), value, f"{where}.")
    if isinstance(kind, type) and issubclass(kind, Enum):
        if not isinstance(value, str) or value not in kind.__members__:
            raise WrongShape(f"{where!r} is none of {', '.join(kind.__members__)}")
        return kind[value]
    if kind is Path and isinstance(value, str):
        return Path(value)
    wanted = (int, float) if kind is float else kind
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        raise WrongShape(f"{where!r} is {type(value).__name__}, not {getattr(kind, '__name__', 'object')}")
    return value


def _items(args: tuple[Any, ...], value: typing.Sequence[Any], where: str) -> Iterable[Any]:
    kind, *rest = args
    if kind is str and rest == [Ellipsis] and all(type(item) is str for item in value):
        return value  # of which a stranger's case may have a million
    kinds = [kind] * len(value) if rest == [Ellipsis] else list(args)
    if len(kinds) != len(value):
        raise WrongShape(f"{where!r} has {len(value)} items, not {len(kinds)}")
    return (_value(each, item, f"{where}[{i}]") for i, (each, item) in enumerate(zip(kinds, value)))
