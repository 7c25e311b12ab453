"""The float64 twin of a graph: the same nodes, wider numbers, and a list of the nodes that could not widen.

The idea: widen constants, inputs and every dtype argument; run node by node; where an operation has no
float64 kernel, round its inputs to their original dtypes, run it as it was, and widen what it returns.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from torchsleuth.torch_core.compare.reference.cloning import clone_inputs, map_tensors, memory_of
from torchsleuth.torch_core.compare.reference.opkinds import NORMALISE, PRODUCT, SEQUENTIAL, plain_name
from torchsleuth.torch_core.compare.reference.trees import is_inexact
from torchsleuth.torch_core.tensors import reach
from torchsleuth.torch_internals.tensors import unwrapped

NARROW_METHODS = frozenset(["half", "float", "bfloat16"])

AUTOCAST = {"_enter_autocast": 2, "wrap_with_autocast": 2}
"""Autocast steps of captured graphs and the position of their `enabled` argument."""

HALF_TO_FLOAT = {"_softmax": 2, "_log_softmax": 2}
"""Operators that take float16 and return float32 where they are told to, and the position of that argument."""

OVERFLOWS = 7 / 8
"""The share of the largest number of a format from which on a value may round to infinity, or not."""

KERNEL_ERRORS = (NotImplementedError, RuntimeError, TypeError, ValueError, IndexError)
"""What torch raises for an operation without a float64 kernel; anything else is a bug to be seen."""

KERNEL = "it launches a Triton kernel, which is written for the dtypes it has"

MEMORY_ERRORS = (torch.OutOfMemoryError, MemoryError)


@dataclass(frozen=True)
class Places:
    """Where a float64 run computes, if not where the graph itself runs, and where that is."""

    device: torch.device | None = None
    graph_device: torch.device | None = None

    def to_device(self, tree: Any) -> Any:
        """What the graph's own device computed, for the float64 run."""
        return tree if self.device is None else map_tensors(tree, lambda t: t.to(self.device))

    def to_graph(self, tree: Any) -> Any:
        """Values of the float64 run, for an operation that only the graph's own device has."""
        return tree if self.device is None else map_tensors(tree, lambda t: t.to(self.graph_device))


SAME_DEVICE = Places()

Dtypes = Mapping[str, Any]
"""Node name to the dtype of its value: a dtype, a list of them for several values, or None."""

Given = Mapping[str, Callable[..., Any]]
"""What stands for nodes by name, those that draw random numbers above all: called with the node's arguments."""


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for a shorter float, complex128 for a shorter complex, otherwise the dtype itself."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def widen(tree: Any) -> Any:
    """The tree with float and complex tensors in float64; other tensors are passed on as they are."""
    return map_tensors(tree, lambda t: t if t.is_quantized else t.to(wide_dtype(t.dtype)))


def widen_inputs(inputs: Sequence[Any], device: torch.device | None = None) -> list[Any]:
    """Fresh float64 copies of inputs; grad-ness and strides survive, and so does aliasing between equal dtypes.

    Example: `x64, = widen_inputs([torch.ones(2, dtype=torch.bfloat16)])`.
    """
    bases: dict[tuple[int, torch.dtype], torch.Tensor] = {}
    shared = _shared_storages(inputs)

    def widen_one(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_quantized or tensor.layout != torch.strided:
            wide = clone_inputs(tensor) if tensor.is_quantized else widen(tensor.detach().clone())
        elif (key := tensor.untyped_storage().data_ptr()) in shared and tensor.numel():
            if (key, tensor.dtype) not in bases:
                length = tensor.untyped_storage().nbytes() // tensor.element_size()
                whole = tensor.detach().as_strided((length,), (1,), 0)
                bases[key, tensor.dtype] = whole.to(wide_dtype(tensor.dtype), copy=True)
            wide = bases[key, tensor.dtype].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        else:
            wide = tensor.detach().to(
                wide_dtype(tensor.dtype), copy=True, memory_format=torch.preserve_format
            )
            if tensor.numel() and wide.stride() != tensor.stride():
                # With gaps: what lies in them may be read, and strides may matter to what reads it.
                length = reach(tensor.shape, tensor.stride())
                span = tensor.detach().as_strided((length,), (1,)).to(wide.dtype, copy=True)
                wide = span.as_strided(tensor.shape, tensor.stride())
        if device is not None:
            wide = wide.to(device)
        # Inside a transform of torch.func the call itself is refused.
        return wide.requires_grad_() if tensor.requires_grad else wide

    return [map_tensors(value, widen_one) for value in inputs]


def _shared_storages(inputs: Sequence[Any]) -> set[int]:
    places: list[int] = []
    map_tensors(list(inputs), lambda t: places.append(memory_of(t) if t.numel() else 0))
    return {place for place, count in Counter(places).items() if place and count > 1}


def widen_graph(graph: GraphModule, device: torch.device | None = None) -> GraphModule:
    """A float64 copy of a graph: constants widened, dtype arguments rewritten, nested graphs included.

    The original is not touched and its unrelated parameters are not copied. With `device`, everything moves there.
    """
    attributes: dict[str, Any] = {}
    copies: dict[int, Any] = {}
    twin = copy.deepcopy(graph.graph)
    for node in twin.nodes:
        if node.op in ("get_attr", "call_module"):
            value = fetch(graph, str(node.target))
            if id(value) not in copies:
                copies[id(value)] = _widen_attribute(value, device)
            attributes[str(node.target)] = copies[id(value)]
        elif node.op in ("call_function", "call_method") and not keeps_bits(node):
            _widen_arguments(node, device)
            node.target = any_layout(node.target)
    return GraphModule(attributes, twin)


def widen_late(wide: GraphModule, positions: Sequence[int], device: torch.device | None = None) -> None:
    """Lets a widened graph take the inputs at these positions as they are and widen each just before its first use.

    So a float64 copy of a parameter lives as long as the step that reads it, not as long as the run.
    """
    graph = wide.graph
    order = {node: place for place, node in enumerate(graph.nodes)}
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]

    def widen_now(value: Any) -> Any:
        return widen_inputs([value], device)[0]

    for position in positions:
        given = placeholders[position]
        users = list(given.users)
        if not users:
            continue
        with graph.inserting_before(min(users, key=order.__getitem__)):
            fresh = graph.call_function(widen_now, (given,))
        fresh.meta[WIDENS] = True
        for user in users:
            user.replace_input_with(given, fresh)
    wide.recompile()


WIDENS = "widens an input"
"""Marks the nodes that `widen_late` adds: they stand in no original graph."""


def fetch(module: torch.nn.Module, path: str) -> Any:
    """The attribute of a module at a dotted path."""
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name)
    return value


def any_layout(target: Any) -> Any:
    """Views as reshapes: a captured graph knows the strides of its capture, compilers hand over others."""
    return torch.ops.aten.reshape.default if target is torch.ops.aten.view.default else target


def keeps_bits(node: Node) -> bool:
    """Whether a node reinterprets the bits of its input, which has no float64 meaning."""
    if plain_name(node) != "view":
        return False
    return any(isinstance(a, torch.dtype) for a in (*node.args, *node.kwargs.values()))


def _widen_attribute(value: Any, device: torch.device | None) -> Any:
    if isinstance(value, GraphModule):
        return widen_graph(value, device)
    if isinstance(value, torch.nn.Parameter):
        [wide] = widen_inputs([value.detach()], device)
        return torch.nn.Parameter(wide, requires_grad=value.requires_grad)
    if isinstance(value, torch.Tensor):
        return widen_inputs([value], device)[0]
    if isinstance(value, torch.nn.Module):
        twin = copy.deepcopy(value).double()
        return twin.to(device) if device is not None else twin
    return value


def _widen_arguments(node: Node, device: torch.device | None) -> None:
    def change(value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return wide_dtype(value)
        if isinstance(value, torch.device) and device is not None:
            return device
        if isinstance(value, (list, tuple)):
            return type(value)(change(v) for v in value) if type(value) in (list, tuple) else value
        return value

    node.args = tuple(change(a) for a in node.args)
    node.kwargs = {key: change(value) for key, value in node.kwargs.items()}
    if node.op == "call_method" and node.target in NARROW_METHODS:
        node.target = "double"
    elif node.op == "call_function" and plain_name(node) in NARROW_METHODS:
        node.target = torch.Tensor.double
    name = plain_name(node) if node.op == "call_function" else ""
    place = AUTOCAST.get(getattr(node.target, "__name__", ""), HALF_TO_FLOAT.get(name))
    if place is not None and len(node.args) > place:
        node.args = (*node.args[:place], False, *node.args[place + 1 :])


@dataclass
class Findings:
    """What running a graph in float64 taught about its nodes, by node name."""

    fallbacks: dict[str, str] = field(default_factory=dict)
    """Nodes run in their original dtype, with the reason."""
    widened: set[str] = field(default_factory=set)
    """Nodes whose result came out narrow (constants, factories) and was widened."""
    terms: dict[str, int] = field(default_factory=dict)
    """How many input elements each output element of a node stands for, roughly."""
    aliasing: set[str] = field(default_factory=set)
    """Nodes whose result shares memory with one of their inputs."""
    infinite: set[str] = field(default_factory=set)
    """Nodes whose result holds infinities or NaN."""
    overflowing: dict[str, float] = field(default_factory=dict)
    """Nodes whose result is so large that rounding decides whether their own format can hold it, and how large."""


class Float64Run(Interpreter):
    """Run a widened graph node by node, falling back per node, and write down `findings`.

    Without `notes` nothing is written down of values, which have to be waited for, only what could not be widened.
    """

    def __init__(
        self,
        wide: GraphModule,
        original: GraphModule,
        dtypes: Dtypes | None = None,
        given: Given | None = None,
        places: Places = SAME_DEVICE,
        after_each: Callable[[], None] = lambda: None,
        notes: bool = True,
    ) -> None:
        super().__init__(wide)
        self.places = places
        self.after_each = after_each
        self.notes = notes
        self.original = original
        self.dtypes = dtypes if dtypes is not None else {}
        self.given = {} if given is None else given
        self.findings = Findings()
        self.originals = {n.name: n for n in original.graph.nodes}

    def run_node(self, n: Node) -> Any:
        if n.op in ("placeholder", "get_attr", "output"):
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        self.after_each()
        if n.meta.get(WIDENS):
            return n.target(*args)
        if n.name in self.given:
            return self.given[n.name](*args, **kwargs)
        if keeps_bits(n):
            value = self._fall_back(n, "it reinterprets bits")
        elif "kernel_idx" in n.kwargs:
            value = self._launched(n)
        else:
            try:
                value = getattr(self, n.op)(n.target, args, kwargs)
            except MEMORY_ERRORS:
                raise
            except KERNEL_ERRORS as error:
                value = self._fall_back(n, str(error).strip().split("\n")[0])
        if self.notes:
            self._note(n, args, kwargs, value)
        return map_tensors(value, lambda tensor: self._widened(n, tensor))

    def _launched(self, n: Node) -> Any:
        """A Triton kernel of the user's is written for the dtypes it has; what it wrote is taken over."""
        given = {arg: self.env[arg] for arg in n.all_input_nodes}
        if "tensors_to_clone" in n.kwargs:  # it writes into copies, which it returns
            return self._fall_back(n, KERNEL)
        narrowed = {
            arg: clone_inputs(self.places.to_graph(narrow(value, self.dtypes.get(arg.name))))
            for arg, value in given.items()
        }
        before = {arg: clone_inputs(value) for arg, value in narrowed.items()}
        self.findings.fallbacks[n.name] = KERNEL
        kwargs = torch.fx.map_arg(n.kwargs, narrowed.__getitem__)
        n.target(**kwargs)
        for arg, value in narrowed.items():
            if isinstance(value, torch.Tensor) and not torch.equal(value, before[arg]):
                given[arg].copy_(self.places.to_device(value))
        return None

    def _fall_back(self, n: Node, reason: str) -> Any:
        self.findings.fallbacks[n.name] = reason
        original = self.originals[n.name]

        # By place, not by name: an input that is widened late is read through a node of its own.
        twins = dict(zip(original.all_input_nodes, n.all_input_nodes))

        def narrow_node(arg: Node) -> Any:
            value = self.env[twins[arg]]
            if arg.op == "get_attr" and isinstance(value, torch.nn.Module):
                return fetch(self.original, str(arg.target))
            return self.places.to_graph(narrow(value, self.dtypes.get(arg.name)))

        args = torch.fx.map_arg(original.args, narrow_node)
        kwargs = torch.fx.map_arg(original.kwargs, narrow_node)
        runner = Interpreter(self.original)
        return self.places.to_device(widen(getattr(runner, n.op)(original.target, args, kwargs)))

    def _widened(self, n: Node, tensor: torch.Tensor) -> torch.Tensor:
        if wide_dtype(tensor.dtype) == tensor.dtype or tensor.is_quantized:
            return tensor
        self.findings.widened.add(n.name)
        return tensor.to(wide_dtype(tensor.dtype))

    def _note(self, n: Node, args: tuple, kwargs: dict, value: Any) -> None:
        inputs: list[torch.Tensor] = []
        results: list[torch.Tensor] = []
        map_tensors([list(args), dict(kwargs)], lambda t: inputs.append(unwrapped(t)))
        map_tensors(value, lambda t: results.append(unwrapped(t)))
        memory = {memory_of(t) for t in inputs} - {0}
        if any(memory_of(tensor) in memory for tensor in results):
            self.findings.aliasing.add(n.name)
        dtype = self.dtypes.get(n.name)
        for tensor in results:
            if not is_inexact(tensor) or tensor.layout != torch.strided or not tensor.numel():
                continue
            size = _largest(tensor)
            if not math.isfinite(size):
                self.findings.infinite.add(n.name)
            elif isinstance(dtype, torch.dtype) and size > OVERFLOWS * torch.finfo(dtype).max:
                self.findings.overflowing[n.name] = size
        if results:
            self.findings.terms[n.name] = _terms(plain_name(n), inputs, results[0])


def _largest(tensor: torch.Tensor) -> float:
    """The largest magnitude in it; NaN where there is one."""
    low, high = torch.aminmax(torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor)
    return torch.maximum(-low, high).item()


def _terms(name: str, inputs: list[torch.Tensor], value: torch.Tensor) -> int:
    """How many terms are summed into one element of `value`, roughly."""
    if name in SEQUENTIAL or name in NORMALISE:
        return max(value.shape[1:] or value.shape, default=1)
    sizes = sorted((t.numel() for t in inputs), reverse=True)
    if not sizes or not value.numel():
        return 1
    if name in PRODUCT and len(sizes) > 1:
        # An (m, k) by (k, n) product: sqrt(mk * kn / mn) is k.
        return max(1, math.isqrt(sizes[0] * sizes[1] // value.numel()))
    return max(1, sizes[0] // value.numel())


def narrow(value: Any, dtypes: Any) -> Any:
    """`value` with its wide tensors rounded to the dtypes that were recorded for it."""
    if isinstance(value, torch.Tensor):
        return value.to(dtypes) if isinstance(dtypes, torch.dtype) and dtypes != value.dtype else value
    if isinstance(value, (list, tuple)) and isinstance(dtypes, list) and len(dtypes) == len(value):
        narrowed = [narrow(v, d) for v, d in zip(value, dtypes)]
        return type(value)(narrowed) if type(value) in (list, tuple) else value
    return value


def dtypes_of(value: Any) -> Any:
    """The dtype of a tensor, a list of them for a sequence, `None` for anything else."""
    if isinstance(value, torch.Tensor):
        return value.dtype
    if isinstance(value, (list, tuple)):
        return [dtypes_of(v) for v in value]
    return None


def recorded_dtypes(graph: GraphModule) -> dict[str, Any]:
    """Dtypes by node name, as the capture noted them (`val` or `example_value` in the node's meta)."""
    found = {}
    for node in graph.graph.nodes:
        noted = node.meta.get("val", node.meta.get("example_value"))
        if noted is not None:
            found[node.name] = dtypes_of(noted)
    return found


class Float64Model(torch.nn.Module):
    """A widened graph as a module: call it like the graph; afterwards `fallbacks` names what did not widen."""

    def __init__(self, graph: GraphModule, dtypes: Dtypes | None = None) -> None:
        super().__init__()
        self.wide = widen_graph(graph)
        # In a tuple, so that the original's parameters do not become this module's parameters.
        self._original = (graph,)
        self._dtypes = dict(dtypes if dtypes is not None else recorded_dtypes(graph))
        self.fallbacks: dict[str, str] = {}

    def forward(self, *args: Any) -> Any:
        run = Float64Run(self.wide, self._original[0], self._dtypes)
        result = run.run(*args)
        self.fallbacks.update(run.findings.fallbacks)
        return result


def cast_to_fp64(model: torch.nn.Module, inputs: Sequence[Any]) -> tuple[torch.nn.Module, list[Any]]:
    """A float64 copy of a model and of its inputs.

    Example: `model64, inputs64 = cast_to_fp64(model, [x]); reference = model64(*inputs64)`.
    """
    if isinstance(model, GraphModule):
        return Float64Model(model), widen_inputs(inputs)
    return copy.deepcopy(model).double(), widen_inputs(inputs)
