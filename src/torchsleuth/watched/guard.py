"""What stands around a compiled graph while it runs: two counter steps and an exception handler.

The first call is attended: small inputs are put on disk before it, the device is synchronised after it, so
that an asynchronous error is caught in the graph that caused it. Later calls pay two memory accesses. Where
results are checked, the calls that are due go through `shadow`.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from torchsleuth.torch_core.tensors import TensorSpec
from torchsleuth.torch_internals.modes import tracing_under_way
from torchsleuth.watched import failures, shadow
from torchsleuth.watched.call_state import CannotRepeat
from torchsleuth.watched.flight import Flight
from torchsleuth.watched.graph_record import RecordedGraph, keep_everything, keep_inputs, keep_small_inputs
from torchsleuth.watched.startup import standing_for

if TYPE_CHECKING:
    from torchsleuth.watched.watch import Watch


@dataclass(frozen=True)
class HeldTensors:
    """Each tensor of the eager copy beside the program's own, which a training step may change at any time."""

    pairs: tuple[tuple[torch.Tensor, weakref.ref[torch.Tensor]], ...] = ()

    @staticmethod
    def between(eager: torch.fx.GraphModule, graph: torch.fx.GraphModule) -> HeldTensors:
        """Pairs a copy of a graph with that graph: `HeldTensors.between(copy.deepcopy(graph), graph)`."""
        own = dict(_tensors(graph))
        pairs = [(tensor, own.get(name)) for name, tensor in _tensors(eager)]
        return HeldTensors(tuple((copy, weakref.ref(t)) for copy, t in pairs if t is not None))

    def take_values(self) -> None:
        """The copies become what the program's tensors are now; to be called under `no_grad`."""
        for copy, reference in self.pairs:
            tensor = reference()
            if tensor is not None and tensor.shape == copy.shape:
                copy.copy_(tensor)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """What a call inside changes of the program's tensors is changed back."""
        before = [(t, t.detach().clone(), t._version) for t in self.of_program().values()]
        try:
            yield
        finally:
            for tensor, values, version in before:
                if tensor._version != version:
                    tensor.data.copy_(values)  # as data: what autograd has saved is not out of date

    def of_program(self) -> dict[int, torch.Tensor]:
        """The program's own tensors by the `id` of their copies."""
        found = ((id(copy), reference()) for copy, reference in self.pairs)
        return {key: tensor for key, tensor in found if tensor is not None}


def _tensors(graph: torch.fx.GraphModule) -> Iterator[tuple[str, torch.Tensor]]:
    return itertools.chain(graph.named_parameters(), graph.named_buffers())


@dataclass(frozen=True)
class GuardedGraph:
    """A compiled graph under guard: whose watch, which record, and the graph as eager would run it."""

    watch: Watch
    flight: Flight
    record: RecordedGraph
    eager: torch.fx.GraphModule | None
    held: HeldTensors = field(default_factory=HeldTensors)

    def failed(self, error: Exception, inputs: Sequence[Any]) -> None:
        with self.watch.our_own_work():
            if failures.already_reported(error):
                # By a graph inside this one. Should that one not fail by itself, this one's inputs are needed.
                if not failures.is_repeated(error):
                    keep_inputs(self.record, inputs)
            else:
                failures.report_failure(self.watch, self.flight, self.record, error, "run", inputs)

    def as_captured(self, args: Sequence[Any]) -> Any:
        """What the graph gives with eager's kernels, in a process that judges the capture alone."""
        if self.eager is None or any(True for _ in (*self.eager.parameters(), *self.eager.buffers())):
            raise CannotRepeat("a graph of it holds tensors of its own")
        return self.eager(*args)

    @property
    def kept_call(self) -> int | None:
        """The number of the call before which everything is to be kept, where this is a second look at the graph."""
        return dict(self.watch.settings.keep).get(self.record.facts.hash)

    @property
    def is_attended(self) -> bool:
        """Whether every call is, and not only the first."""
        return self.eager is not None or self.watch.settings.synchronised


Run = Callable[[list[Any]], Any]  # takes one list and empties it, as the inner compiler's callables do


def guard_boxed(compiled: Run, graph: GuardedGraph) -> Run:
    """Guards a callable that takes one list, as the inner compiler returns it."""
    return _guarded(compiled, compiled, graph, inner=True)


def guard_unboxed(compiled: Callable[..., Any], graph: GuardedGraph) -> Callable[..., Any]:
    """Guards a callable that takes its arguments one by one, as a Dynamo backend returns it.

    A `_boxed_call` flag on such a callable is not to be trusted: torch's own wrappers copy it around.
    """
    return standing_for(_guarded(compiled, lambda args: compiled(*args), graph, inner=False), compiled)


def _guarded(compiled: Callable[..., Any], run: Run, graph: GuardedGraph, inner: bool) -> Callable[..., Any]:
    """`compiled` under guard; `run` is the same with one list; `inner` where it is part of a Dynamo backend's work."""
    flight, slot = graph.flight, graph.flight.run_slot(graph.record.facts.number)
    calls = 0
    attend, kept = graph.is_attended, graph.kept_call

    def call(*args: Any) -> Any:
        nonlocal calls
        if graph.watch.judging and not inner:
            return graph.as_captured(args)
        if graph.watch.rerunning:
            return shadow.rerun(graph, compiled, args)
        calls += 1
        graph.record.calls = calls
        flight.counters[slot] += 1
        try:
            if (attend or calls in (1, kept)) and not graph.watch.suspended:
                return _attended(graph, run, args[0] if inner else list(args), calls, inner)
            return compiled(*args)
        except Exception as error:
            graph.failed(error, (args[0] or _still_alive(error, graph.record)) if inner else args)
            raise
        finally:
            flight.counters[slot] += 1

    return call


def _attended(graph: GuardedGraph, compiled: Run, args: list[Any], calls: int, inner: bool) -> Any:
    if not inner:
        graph.watch.latest = graph
    if tracing_under_way():  # by torch.export, say: there are no values, and to look at sizes would fix them
        return compiled(args)
    if calls == graph.kept_call:
        with graph.watch.our_own_work():
            keep_everything(graph.record, args)
    elif calls == 1 or graph.watch.settings.synchronised:
        with graph.watch.our_own_work():
            keep_small_inputs(graph.record, args)
    on_accelerator = any(isinstance(a, torch.Tensor) and a.is_cuda for a in args)
    if graph.eager is not None and shadow.is_due(graph.watch.settings, calls):
        return shadow.checked_call(graph, compiled, args, inner)
    result = compiled(args)
    if on_accelerator:
        torch.cuda.synchronize()
    return result


def _still_alive(error: BaseException, record: RecordedGraph) -> list[Any]:
    """The inputs of a boxed call that emptied its list, as far as anyone still holds them.

    Inductor's generated code unpacks the list into locals named after the placeholders and drops them as it
    goes; what it had not dropped is still in the traceback. What it had dropped, the Dynamo-level call around it
    may hold: a forward graph's inputs are that call's, so one of the same dtype, shape and strides is taken.
    """
    names = record.facts.placeholders
    found: dict[str, Any] = {}
    tb = error.__traceback__
    while tb is not None:
        local = tb.tb_frame.f_locals
        here = {name: local[name] for name in names if name in local}
        found = max(found, here, key=len)
        tb = tb.tb_next
    frame = sys._getframe()
    while frame is not None and (frame.f_code is not _CALL or frame.f_locals["inner"]):
        frame = frame.f_back  # type: ignore[assignment]
    around = list(frame.f_locals["args"]) if frame is not None and record.inputs is not None else []
    taken = {id(value) for value in found.values()}
    for name, spec in zip(names, record.inputs.inputs if record.inputs is not None else ()):
        for value in around if name not in found else ():
            if id(value) not in taken and _fits(value, spec):
                found[name] = value
                taken.add(id(value))
                break
    return [found.get(name) for name in names] if found else []


def _fits(value: Any, spec: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and isinstance(spec, TensorSpec)
        and str(value.dtype).removeprefix("torch.") == spec.dtype
        and tuple(value.shape) == spec.shape
        and value.stride() == spec.stride
    )


_CALL = next(code for code in _guarded.__code__.co_consts if getattr(code, "co_name", "") == "call")
