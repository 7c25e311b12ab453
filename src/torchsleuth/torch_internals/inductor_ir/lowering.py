"""A compile that stops after Inductor's lowering: the lowered graph is evaluated, no code is generated from it.

A run that differs in one thing answers which side of it is at fault. If the evaluated graph is right where generated
code is wrong, code generation (scheduler, C++ or Triton) is at fault; if it is wrong or fails in the same way, the
lowering or what comes before it is. Generated code is a list of steps over named buffers, and so is the IR it is
generated from: a name stands for one tensor; a mutation or a concatenation only says that two names share it. Loops
are evaluated by `loops`, kernels outside Inductor by `kernels`.

Inductor's IR is no interface, so `why_not_interpretable` looks for what is relied on first, and classes are known by
name. `GraphLowering.compile_to_module` is the step replaced, from 2.11 on; what the compile asks of the scheduler
afterwards is answered by an empty one.
"""

from __future__ import annotations

import contextlib
import importlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import sympy
import torch

from torchsleuth.torch_internals.configuration import without_caches
from torchsleuth.torch_internals.hooks import torch_release
from torchsleuth.torch_internals.inductor_ir.arithmetic import NotInterpretable, number, value_of
from torchsleuth.torch_internals.inductor_ir.kernels import require_layout, run_kernel
from torchsleuth.torch_internals.inductor_ir.loops import run_loop
from torchsleuth.torch_internals.places import replaced

# The releases whose IR this was written for.
_OLDEST, _NEWEST = (2, 11), (2, 15)
_NEEDED: dict[str, dict[str, tuple[str, ...]]] = {
    "torch._inductor.graph": {"GraphLowering": ("compile_to_module",)},
    "torch._inductor.virtualized": {"V": ("set_graph_handler", "set_ops_handler")},
    "torch._inductor.ir": {
        "ComputedBuffer": ("get_name", "get_output_spec", "get_store_function"),
        "Loops": ("get_device", "get_pointwise_size", "get_reduction_size", "get_reduction_type"),
        "FlexibleLayout": ("allow_indexing",),
        "MutationLayoutSHOULDREMOVE": ("get_buffer",),
        "ReinterpretView": ("get_layout", "get_name"),
        "ExternKernel": ("codegen", "get_name", "get_op_name", "get_output_spec"),
        "FallbackKernel": ("codegen",),
        "MultiOutput": ("codegen",),
    },
    "torch._C._dynamo.guards": {"assert_size_stride": ()},
}


def why_not_interpretable() -> str | None:
    """One sentence on why the lowered graphs of this torch cannot be evaluated; None where they can.

    >>> why_not_interpretable() is None
    True
    """
    if not _OLDEST <= torch_release() <= _NEWEST:
        known = " to ".join(".".join(map(str, release)) for release in (_OLDEST, _NEWEST))
        return f"the lowered graphs of torch {torch.__version__} are not known here, only those of {known}"
    for module_name, classes in _NEEDED.items():
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            return f"torch {torch.__version__} has no module {module_name}"
        for name, attributes in classes.items():
            found = getattr(module, name, None)
            lacks = [name] if found is None else [f"{name}.{a}" for a in attributes if not hasattr(found, a)]
            if lacks:
                return f"torch {torch.__version__} has no {module_name}.{lacks[0]}"
    return None


@contextlib.contextmanager
def interpreted_lowering() -> Iterator[None]:
    """Inside, what Inductor compiles runs by evaluating its lowered graph; forward and backward alike.

    A graph that cannot be evaluated raises NotInterpretable when it is called, a torch that is not known does at once.

    >>> with interpreted_lowering(): torch.compile(torch.relu)(x)
    tensor([0., 2.])
    """
    why = why_not_interpretable()
    if why is not None:
        raise NotInterpretable(why)
    place = ("torch._inductor.graph", "GraphLowering", "compile_to_module")
    # A cached compile would skip the lowering, and ours must not be found by the next one.
    with without_caches(), replaced(*place, lambda _: _interpreted_module):
        yield


def _interpreted_module(graph: Any) -> Any:
    """What the compile takes for its loaded module: `call` gets the list of inputs and empties it."""
    config = importlib.import_module("torch._inductor.config")
    asserts = bool(config.size_asserts)
    graph.scheduler = SimpleNamespace(nodes=[])
    # Its evaluation looks at values on the way, which a recorded CUDA graph cannot.
    graph.disable_cudagraphs_reason = "the lowered graph is evaluated, not compiled"

    def call(inputs: list[Any]) -> tuple[Any, ...]:
        values = list(inputs)
        inputs.clear()
        try:
            return tuple(run_graph(graph, values, {}, asserts))
        except AttributeError as error:
            if _raised_here(error):
                raise NotInterpretable(
                    f"this torch's lowered graphs are built differently: {error}"
                ) from error
            raise

    return SimpleNamespace(call=call)


def _raised_here(error: BaseException) -> bool:
    """Whether our own walk over the graph raised it, not something that the walk called."""
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    return Path(innermost.filename).parent == Path(__file__).parent


def family(node: Any) -> list[str]:
    """The class names of an IR node, its own first."""
    return [each.__name__ for each in type(node).__mro__]


class Run:
    """One call of a lowered graph: the tensors behind its buffers' names and the values of its symbols."""

    def __init__(self, graph: Any, inputs: Sequence[Any], symbols: dict[Any, Any], asserts: bool) -> None:
        self.graph = graph
        self.asserts = asserts
        self.symbols = dict(symbols)
        self.values: dict[str, Any] = {}
        self._bind(inputs)

    def _bind(self, inputs: Sequence[Any]) -> None:
        names = self.graph.graph_input_names
        if len(names) != len(inputs):
            raise NotInterpretable(f"the graph takes {len(names)} inputs and got {len(inputs)}")
        self.values.update(zip(names, inputs))
        described = [(name, self.graph.graph_inputs.get(name)) for name in names]
        for name, what in described:
            if isinstance(what, sympy.Symbol):
                self.symbols[what] = self.values[name]
        tensors = [(self.values[name], what) for name, what in described if "TensorBox" in family(what)]
        for value, what in tensors:
            for known, expressions in ((value.size(), what.get_size()), (value.stride(), what.get_stride())):
                for real, expression in zip(known, expressions):
                    if isinstance(expression, sympy.Symbol):
                        self.symbols.setdefault(expression, real)
        self._follow_replacements()
        for value, what in tensors:
            if self.asserts:
                require_layout(self, value, what.get_size(), what.get_stride())

    def _follow_replacements(self) -> None:
        """Symbols that torch keeps as names for others: merged sizes, and products it computes once."""
        sizes = self.graph.sizevars
        merged = getattr(sizes.shape_env, "replacements", {})
        computed = getattr(sizes, "inv_precomputed_replacements", {})
        for symbol, expression in [*merged.items(), *computed.items()]:
            if symbol not in self.symbols and all(free in self.symbols for free in expression.free_symbols):
                self.symbols[symbol] = value_of(expression, self.symbols)

    def outputs(self) -> list[Any]:
        """Evaluates every operation, then gives what the graph returns."""
        for operation in self.graph.operations:
            self._evaluate(operation)
        return [self.value(node) for node in self.graph.graph_outputs]

    def _evaluate(self, operation: Any) -> None:
        kinds = family(operation)
        if kinds[0] == "ComputedBuffer":
            from torch._inductor.virtualized import V

            run_loop(operation, self, V.set_ops_handler)
        elif kinds[0] in ("NopKernel", "ConcatKernel"):
            self.tensor(operation.get_name())
        else:
            run_kernel(self, operation)

    def nested(self, subgraph: Any, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of a graph inside this one: a branch, a loop's body."""
        return run_graph(subgraph.graph, inputs, self.symbols, self.asserts)

    def flat(self, name: str) -> torch.Tensor:
        """The memory of a buffer from its first element on, as generated code gets it by pointer."""
        # Through .data, because generated code writes without telling autograd's version counter.
        tensor = self.tensor(name).data
        start = tensor.storage_offset()
        count = tensor.untyped_storage().nbytes() // tensor.element_size() - start
        return tensor.as_strided((count,), (1,), start)

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor a buffer's name stands for; memory that is first written here is made here."""
        value = self.values.get(name)
        if value is None:
            value = self.graph.constants.get(name)
        if value is None:
            value = self.values[name] = self._made(name)
        if not isinstance(value, torch.Tensor):
            raise NotInterpretable(f"the buffer {name} is not a tensor but {type(value).__name__}")
        return value

    def _made(self, name: str) -> torch.Tensor:
        buffer = self.graph.name_to_buffer.get(name)
        if buffer is None:
            raise NotInterpretable(f"the buffer {name} is read but no operation of the graph makes it")
        layout = buffer.get_output_spec()
        kinds = family(layout)
        if "MutationLayoutSHOULDREMOVE" in kinds:
            return self.tensor(layout.get_buffer().get_name())
        if kinds[0] == "NonOwningLayout":
            return self.value(layout.view)
        if "Layout" not in kinds:
            raise NotInterpretable(f"the buffer {name} has the layout {kinds[0]}")
        return torch.empty_strided(
            self.numbers(layout.size), self.numbers(layout.stride), dtype=layout.dtype, device=layout.device
        )

    def numbers(self, expressions: Sequence[Any]) -> tuple[int, ...]:
        return tuple(number(each, self.symbols) for each in expressions)

    def value(self, node: Any) -> Any:
        """What an argument or output stands for: a tensor, a number, None, or a list of them."""
        convert = next((_VALUES[kind] for kind in family(node) if kind in _VALUES), None)
        if convert is None:
            raise NotInterpretable(f"an operation takes a value of the type {type(node).__name__}")
        return convert(self, node)


def _view(run: Run, view: Any) -> torch.Tensor:
    base = run.tensor(view.get_name())
    layout = view.get_layout()
    start = base.storage_offset() + number(layout.offset, run.symbols)
    seen = base.as_strided(run.numbers(layout.size), run.numbers(layout.stride), start)
    return seen if layout.dtype == base.dtype else seen.view(layout.dtype)


def _buffer(run: Run, buffer: Any) -> Any:
    layout = buffer.get_output_spec()
    if "MutationLayoutSHOULDREMOVE" in family(layout):
        return run.value(layout.target)
    name = buffer.get_name()
    value = run.values.get(name)
    return run.tensor(name) if value is None else value


_VALUES: dict[str, Callable[[Run, Any], Any]] = {
    "TensorBox": lambda run, box: run.value(box.data),
    "StorageBox": lambda run, box: run.value(box.data),
    "ReinterpretView": _view,
    "Buffer": _buffer,
    "NoneAsConstantBuffer": lambda run, node: None,
    "ShapeAsConstantBuffer": lambda run, node: value_of(node.expr, run.symbols),
    "Constant": lambda run, node: torch.tensor(node.value, dtype=node.dtype, device=node.device),
    "Basic": lambda run, node: value_of(node, run.symbols),
    "SymInt": lambda run, node: value_of(node, run.symbols),
    "SymFloat": lambda run, node: value_of(node, run.symbols),
    "SymBool": lambda run, node: value_of(node, run.symbols),
    "list": lambda run, node: [run.value(each) for each in node],
    "tuple": lambda run, node: tuple(run.value(each) for each in node),
    "dict": lambda run, node: {key: run.value(each) for key, each in node.items()},
    **dict.fromkeys(
        ["int", "float", "bool", "complex", "str", "NoneType", "dtype", "device", "layout", "memory_format"],
        lambda run, value: value,
    ),
}


def run_graph(graph: Any, inputs: Sequence[Any], symbols: dict[Any, Any], asserts: bool) -> list[Any]:
    """The outputs of a lowered graph for these inputs; inputs that the graph mutates are mutated.

    Use: `run_graph(graph_lowering, [torch.ones(3)], {}, asserts=True)`.
    """
    from torch._inductor.virtualized import V

    with V.set_graph_handler(graph), torch.no_grad():
        return Run(graph, inputs, symbols, asserts).outputs()
