"""Torch's decompositions: its own tables, Inductor's with what the program changed in it, and those in Python.

The last are registered as kernels: every backend that traces gets them, `aot_eager` as well. They stand outside of the
tables that a backend chooses from, so there is no question that torch asks before one is used. While a compile is
watched, each is either gone - then the operator goes where eager would send it - or notes that it was used.

Versions: the tables, `fast_random_decomps`, `py_kernels` and `_dispatch_cache` of an operator are those of 2.11..2.15.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

_TABLE = "torch._inductor.decomposition"
_as_imported: dict[Any, Any] = {}
# Taken out by torch itself, where a setting says so.
_TORCHS_OWN = "quantized.embedding_bag_byte_unpack"


def decomposition_of(op: Any) -> Callable[..., Any] | None:
    """The function by which torch writes an operator in simpler ones, whoever compiles; None where it has none.

    >>> decomposition_of(torch.ops.aten.hardswish.default)(torch.ones(1))
    tensor([0.6667])
    """
    from torch._decomp import decomposition_table

    return decomposition_table.get(op)


def remember_table() -> None:
    """Keeps the table as torch made it, right after its import."""
    _as_imported.update(sys.modules[_TABLE].decompositions)


def changed_decompositions() -> tuple[dict[str, Callable[..., Any]], list[str]]:
    """The decompositions that the program put in, by operator (`aten.silu.default`), and the operators it took out."""
    if not _as_imported:
        return {}, []
    table = sys.modules[_TABLE].decompositions
    changed = {str(op): made for op, made in table.items() if _as_imported.get(op) is not made}
    put_in = {op: made for op, made in changed.items() if not _is_torchs(made)}
    taken_out = [str(op) for op in _as_imported if op not in table and not str(op).startswith(_TORCHS_OWN)]
    return put_in, taken_out


def _is_torchs(made: Any) -> bool:
    home = getattr(getattr(made, "func", made), "__module__", None) or ""
    return home.partition(".")[0] == "torch"


def table_source(names: Mapping[str, str], taken_out: Sequence[str]) -> str:
    """Statements that change the table so; `names` are those of the functions, by operator.

    >>> print(table_source({"aten.silu.default": "my_silu"}, []))
    import torch._inductor.decomposition as inductor_table
    inductor_table.decompositions[torch.ops.aten.silu.default] = my_silu
    inductor_table.fast_random_decomps.cache_clear()
    """
    lines = [f"inductor_table.decompositions[torch.ops.{op}] = {name}" for op, name in names.items()]
    lines += [f"inductor_table.decompositions.pop(torch.ops.{op}, None)" for op in taken_out]
    return "\n".join(
        (f"import {_TABLE} as inductor_table", *lines, "inductor_table.fast_random_decomps.cache_clear()")
    )


KEYS = ("Autograd", "CompositeImplicitAutograd")


@contextlib.contextmanager
def python_decompositions(used: Callable[[str], Any], off: Callable[[str], bool]) -> Iterator[None]:
    """Tells `used` the operators (`aten.dropout`) as their kernels run; those for which `off` is true have none.

    Use: `with python_decompositions(names.append, lambda name: False): compile_it()`.
    """
    before = list(_kernels())
    try:
        for op, key, kernel in before:
            name = str(op._overloadpacket)
            if off(name):
                del op.py_kernels[key]
            else:
                op.py_kernels[key] = _telling(kernel, name, used)
            op._dispatch_cache.clear()
        yield
    finally:
        for op, key, kernel in before:
            op.py_kernels[key] = kernel
            op._dispatch_cache.clear()


def _telling(kernel: Any, name: str, used: Callable[[str], Any]) -> Any:
    @functools.wraps(kernel)
    def call(*args: Any, **kwargs: Any) -> Any:
        used(name)
        return kernel(*args, **kwargs)

    return call


def where_registered(name: str) -> str:
    """The function and place in torch's source of an operator's decomposition in Python; empty where it has none.

    >>> where_registered("aten.dropout").partition(" at ")[0]
    'dropout'
    """
    for op, _, kernel in _kernels():
        if str(op._overloadpacket) == name:
            own = inspect.unwrap(kernel)
            code = getattr(own, "__code__", None)
            file = Path(code.co_filename).as_posix().rpartition("/torch/")[2] if code is not None else ""
            place = f" at torch/{file}:{code.co_firstlineno}" if code is not None else ""
            return f"{getattr(own, '__name__', name)}{place}"
    return ""


def _kernels() -> Iterator[tuple[Any, Any, Any]]:
    """Every operator of aten with such a kernel, the key it is registered for, and the kernel."""
    importlib.import_module("torch._decomp")
    keys = [getattr(torch._C.DispatchKey, key) for key in KEYS]
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else ():
            op = getattr(packet, overload)
            for key in keys:
                if key in op.py_kernels:
                    yield op, key, op.py_kernels[key]
