"""An operator in other words than its kernel: torch's decompositions, and what fake tensors say before it is computed.

Torch has decompositions in tables of its own, in Inductor's with what the program changed in it, and in Python. The
last are registered as kernels: every backend that traces gets them, `aot_eager` as well. They stand outside of the
tables that a backend chooses from, so there is no question that torch asks before one is used. While a compile is
watched, each is either gone - then the operator goes where eager would send it - or notes that it was used.

A fake tensor has a shape and no values; an operator's fake kernel works out what the real one would return, in well
under a millisecond: for one operator call, or for every node of a graph.

Versions: the tables, `fast_random_decomps`, `py_kernels` and `_dispatch_cache` of an operator, `FakeTensorMode` and
`torch.fx.Interpreter` are those of 2.11..2.15.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree

from torchsleuth.script_runtime.symbolic_inputs import symbolic_inputs, symbolic_tracing
from torchsleuth.torch_internals.modes import outside_all_modes

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
    # What Inductor asks for it by may be a function of the program's own.
    chosen = getattr(sys.modules.get("torch._inductor.compile_fx"), "select_decomp_table", None)
    table = sys.modules[_TABLE].decompositions if chosen is None or _is_torchs(chosen) else chosen()
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


# A fake kernel that raises one of these says "it depends on the values" or "I cannot", which is no mismatch.
_NO_ANSWER = (
    "UnsupportedFakeTensorException",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "UnsupportedOperatorException",
    "UnsupportedMutationAliasingException",
    "GuardOnDataDependentSymNode",
    "PendingUnbackedSymbolNotFound",
)


@dataclass(frozen=True)
class FakeAnswer:
    """What the fake kernel returned, the fake inputs it was given, or the exception it raised."""

    outputs: Any = None
    inputs: Any = None
    error: Exception | None = None


def fake_answer(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> FakeAnswer | None:
    """Runs the fake kernel of `op` on fakes of these arguments; None where it has no answer to give.

    >>> fake_answer(torch.ops.aten.relu.default, (torch.ones(2),), {}).outputs.shape
    torch.Size([2])
    """
    fake_tensor = importlib.import_module("torch._subclasses.fake_tensor")
    symbolic = importlib.import_module("torch.fx.experimental.symbolic_shapes")

    def fake_of(value: Any) -> Any:
        return mode.from_tensor(value, static_shapes=True) if isinstance(value, torch.Tensor) else value

    with outside_all_modes(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mode = fake_tensor.FakeTensorMode(shape_env=symbolic.ShapeEnv())
        try:
            with mode:
                inputs = _pytree.tree_map(fake_of, (tuple(args), kwargs))
                return FakeAnswer(op(*inputs[0], **inputs[1]), inputs)
        except Exception as error:
            return None if type(error).__name__ in _NO_ANSWER else FakeAnswer(error=error)


def fake_results(
    graph: torch.fx.GraphModule, described: Mapping[str, Any], numbers: list
) -> tuple[dict[str, Any], Exception | None]:
    """The fake result of each node by name, and what stopped the run, if anything did.

    `described` is the JSON form of an `InputsDescription`; `numbers` holds the plain inputs at their places.
    """
    fakes, mode = symbolic_inputs(dict(described), numbers)
    found: dict[str, Any] = {}

    class Steps(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            found[n.name] = result = super().run_node(n)
            return result

    steps = Steps(graph)
    steps.extra_traceback = False
    # It writes a traceback for every graph that does not fit; a search asks about hundreds.
    log = logging.getLogger("torch._subclasses.fake_tensor")
    silent, log.disabled = log.disabled, True
    try:
        with symbolic_tracing(mode):
            steps.run(*fakes)
    except Exception as error:  # whatever the graph's functions raise: it is an answer, never taken for ours
        return found, error
    finally:
        log.disabled = silent
    return found, None


def forms_of(results: Mapping[str, Any]) -> dict[str, str]:
    """Dtype and shape of each tensor among the results, as text: equal for those that look alike.

    >>> forms_of({"x": torch.ones(2, 3)})
    {'x': "torch.float32('2', '3')"}
    """
    return {
        name: f"{value.dtype}{tuple(map(str, value.shape))}"
        for name, value in results.items()
        if isinstance(value, torch.Tensor)
    }
