"""Decompositions that torch registers as kernels in Python: every backend that traces gets them, `aot_eager` as well.

They stand outside of the tables that a backend chooses from, so there is no question that torch asks before one is
used. While a compile is watched, each is either gone - then the operator goes where eager would send it - or notes that
it was used.

Versions: `py_kernels` and `_dispatch_cache` of an operator are those of 2.11 to 2.15.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

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
            place = f" at torch/{_tail(code.co_filename)}:{code.co_firstlineno}" if code is not None else ""
            return f"{getattr(own, '__name__', name)}{place}"
    return ""


def _tail(file: str) -> str:
    return Path(file).as_posix().rpartition("/torch/")[2]


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
