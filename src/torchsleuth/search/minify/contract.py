"""What a reduction is made of: a State, Edits that make it smaller, and an Oracle that says whether it still fails.

A reducer is a pure function from a state to edits; an edit names what it does and gives the edited state, or
None where it does not fit any more. One engine asks the oracle, counts and keeps time; it accepts an edit only
if the result is smaller in one total order, so every search ends and two runs take the same way. In that order what a
reader must understand comes first (calls, outputs, inputs), then what a run depends on (sizes, symbols, settings,
dtypes, values), and the printed length last.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from torchsleuth.core.cases.record import CompileSettings, Embedded
from torchsleuth.core.protocol.steps import Verification
from torchsleuth.script_runtime.inputs import storage_bytes
from torchsleuth.torch_core.graphs.cut import calls_of
from torchsleuth.torch_core.graphs.recording import Recording
from torchsleuth.torch_core.tensors import InputsDescription, ScalarSpec, SymbolSpec, TensorSpec

# The plainest dtype first.
_DTYPES = ("float32", "int64", "bool", "float64", "int32", "bfloat16", "float16")
# Values are never changed in place, so each is hashed once; by address, a later tensor could pass for an earlier one.
_DIGESTS = WeakTensorKeyDictionary()


class Reducible(Protocol):
    """What is made smaller: a graph as a `State` here, a program as text in `minify.python`."""

    @property
    def size(self) -> tuple[int, *tuple[float | str, ...]]:
        """Smaller for what is simpler; its first number is how much there is to read."""

    @property
    def key(self) -> str:
        """Equal where the same question is asked."""

    @property
    def amount(self) -> tuple[int, str]:
        """What a person is told of how much there is, and the unit: calls of a graph, lines of a program."""


S = TypeVar("S", bound=Reducible)


@dataclass(frozen=True)
class Input:
    """One input of a graph: what it looks like, and its value; None where any value of this form will do."""

    name: str
    spec: TensorSpec | ScalarSpec
    value: torch.Tensor | None = None

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.spec, TensorSpec)


@dataclass(frozen=True)
class State:
    """A graph with its inputs and the settings it is compiled under; nothing in it is ever changed in place.

    With `any_values` the failure does not depend on values. `static_names` are the inputs that AOTAutograd calls static
    (parameters, mostly), None where it was not asked; `interpreted` has the lowered graph run without generated code.
    """

    graph: torch.fx.GraphModule
    inputs: tuple[Input, ...]
    symbols: Mapping[str, SymbolSpec] = field(default_factory=dict)
    settings: CompileSettings = field(default_factory=CompileSettings)
    embedded: Embedded = field(default_factory=Embedded)
    any_values: bool = False
    static_names: tuple[str, ...] | None = None
    interpreted: bool = False
    # Where the tensors that the graph holds lie, by name; in the process of a search they lie on the CPU.
    constant_devices: Mapping[str, str] = field(default_factory=dict)

    @property
    def description(self) -> InputsDescription:
        """The inputs as they go to a trial, without values."""
        return InputsDescription(tuple(i.spec for i in self.inputs), self.symbols)

    @property
    def tensors(self) -> list[tuple[Input, TensorSpec]]:
        """The inputs that are tensors, with what they look like."""
        return [(given, given.spec) for given in self.inputs if isinstance(given.spec, TensorSpec)]

    @cached_property
    def size(self) -> tuple[int, *tuple[float | str, ...]]:
        """A key that is smaller for a simpler state: `state.size < other.size`; its first number is its calls."""
        graph = self.graph.graph
        tensors = [spec for _, spec in self.tensors]
        return (
            calls_of(self.graph),
            self.settings.level == "aot",
            len(graph.output_node().all_input_nodes),
            len(self.inputs),
            sum(t.device != "cpu" for t in tensors),
            len(self.symbols),
            sum(isinstance(i.spec, ScalarSpec) for i in self.inputs),
            _unusual(self.settings),
            sum(math.prod(t.shape) for t in tensors),
            sum(len(t.shape) for t in tensors),
            sum(not _is_contiguous(t) for t in tensors),
            sum(t.requires_grad or t.is_parameter for t in tensors),
            sum(_DTYPES.index(t.dtype) if t.dtype in _DTYPES else len(_DTYPES) for t in tensors),
            sum(_value_rank(i, self.any_values) for i in self.inputs),
            sum(_weight((n.args, n.kwargs)) for n in graph.nodes if n.op != "output"),
            # The positions of inputs used twice count too: f(x, x) is simpler than f(x, y).
            sum(len(str(n.args)) + len(str(n.kwargs)) for n in graph.nodes),
        )

    @cached_property
    def key(self) -> str:
        """Equal for states that ask the same question: the same graph, inputs, values and settings."""
        graphs = [str(part.graph) for part in self.graph.modules() if isinstance(part, torch.fx.GraphModule)]
        values = [_digest(i.value) for i in self.inputs]
        how = [self.settings.to_json(), self.static_names, self.interpreted]
        parts = [graphs, self.description.to_json(), values, how]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def amount(self) -> tuple[int, str]:
        return calls_of(self.graph), "calls"

    def having(self, **changes: Any) -> State:
        """This state with other fields: `state.having(symbols={})`."""
        return replace(self, **changes)

    def setting(self, **changes: Any) -> State:
        """This state under other settings: `state.setting(config={})`."""
        return replace(self, settings=replace(self.settings, **changes))


def _unusual(settings: CompileSettings) -> int:
    """How many settings differ from what torch starts with; a graph that trains is more than one that does not."""
    count = sum(len(values) for values in settings.config.values()) + len(settings.options)
    kwargs = settings.compile_kwargs or {"is_inference": True}
    count += sum(bool(v) for k, v in kwargs.items() if k != "is_inference") + (not kwargs.get("is_inference"))
    world = settings.state
    if world is None:
        return count
    return count + sum(map(bool, (world.grad, world.inference_mode, world.deterministic, world.autocast)))


def _is_contiguous(spec: TensorSpec) -> bool:
    expected = 1
    for size, stride in zip(reversed(spec.shape), reversed(spec.stride)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return spec.storage_offset == 0 and spec.alias_of is None


def _value_rank(given: Input, play_no_part: bool) -> int:
    """Ones and zeros before any value from a seed, then small whole numbers, whole numbers, anything."""
    if not given.is_tensor:
        return 0
    if given.value is None:
        return 0 if play_no_part else 3
    value = given.value.detach()
    if value.is_floating_point() and value.itemsize == 1:  # numbers of 8 bits know no arithmetic
        value = value.float()
    if bool((value == 1).all()):
        return 1
    if bool((value == 0).all()):
        return 2
    if value.is_complex() or not bool((value == value.double().round()).all()):
        return 6
    return 4 if bool((value.double().abs() <= 8).all()) else 5


def _weight(value: object) -> int:
    """How much there is to read in an argument: literals count, nodes do not."""
    if isinstance(value, (list, tuple)):
        return sum(map(_weight, value)) + len(value)
    if isinstance(value, dict):
        return sum(map(_weight, value.values())) + len(value)
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (int, float)):
        return 0 if value in (0, 1, -1) else 1
    return 0


def _digest(value: torch.Tensor | None) -> str:
    if value is None:
        return "None"
    if value not in _DIGESTS:
        storage = value.untyped_storage().cpu()
        _DIGESTS[value] = hashlib.sha256(storage_bytes(storage)).hexdigest()
    return _DIGESTS[value]


@dataclass(frozen=True)
class Edit(Generic[S]):
    """One step towards a smaller state, as data: what it does, and the function and arguments that do it."""

    what: str
    function: Callable[..., S | None]
    arguments: tuple[object, ...] = ()

    def apply(self, state: S) -> S | None:
        """The edited state, or None where the edit does not fit."""
        return self.function(state, *self.arguments)


@dataclass(frozen=True)
class NumberEdit(Generic[S]):
    """A number that may become smaller, from `high` where it stands down to `low`."""

    what: str
    low: int
    high: int
    function: Callable[..., S | None]
    arguments: tuple[object, ...] = ()

    def at(self, state: S, number: int) -> S | None:
        """The state with the number set, or None where that does not fit."""
        return self.function(state, number, *self.arguments)

    def apply(self, state: S) -> S | None:
        """The state with the number at its lowest."""
        return self.at(state, self.low)


Reducer = Callable[[S], Iterable[Edit[S] | NumberEdit[S]]]

Answers = Callable[[Sequence[S]], Sequence[bool | None]]


class Oracle(Generic[S]):
    """Says which states fail the way the original did; one derived from this has no more to say, unless it does so."""

    # The nodes whose results were wrong in the last state that failed.
    suspects: Sequence[str] = ()

    def __call__(self, states: Sequence[S]) -> Sequence[bool | None]:
        """Whether each state fails; None where it was not worth finding out, because an earlier one does."""
        raise NotImplementedError

    def each(self, states: Sequence[S]) -> Sequence[bool | None]:
        """The same, for whoever wants all answers."""
        return self(states)

    def first_passing(self, states: Sequence[S]) -> int | None:
        """The place of a state that passes, the first in time; None where all fail."""
        return next((place for place, failed in enumerate(self.each(states)) if failed is False), None)

    def recording(self, state: S) -> Recording | None:
        """What every node of the state yields in eager; None where whoever searches may run it to find out."""
        return None

    def quicker(self, state: S) -> Oracle[S] | None:
        """One that answers sooner, mostly alike, by less than all of the compiler; None where `state` passes there."""
        return None

    def settles_for(self, quicker: Oracle[S], half: S) -> bool:
        """Whether what fails for `quicker` has failed: seconds that explode, by what `half` of it takes.

        From then on this one asks as that one does.
        """
        return False

    def in_a_share_of_the_time(self) -> Oracle[S]:
        """One for a question that is dear and only makes sure: what is not answered soon passes there."""
        return self

    @property
    def failing_is_slow(self) -> bool:
        """Whether it takes longer to see a failure than to see none."""
        return False

    @property
    def seconds_to_fail(self) -> float:
        """What it takes at least to see a failure."""
        return 0.0

    @property
    def names_outputs(self) -> bool:
        """Whether a failure says which of the results are wrong, as `suspects`."""
        return False


@dataclass(frozen=True)
class _FunctionOracle(Oracle[S]):
    answers: Answers[S]

    def __call__(self, states: Sequence[S]) -> Sequence[bool | None]:
        return self.answers(states)


def as_oracle(answers: Answers[S]) -> Oracle[S]:
    """An oracle as it is, or one of a plain function.

    >>> as_oracle(lambda states: ["relu" in s.graph.code for s in states]).names_outputs
    False
    """
    return answers if isinstance(answers, Oracle) else _FunctionOracle(answers)


class Listener:
    """Someone who follows a search to its scripts; every method may do nothing, as these do."""

    def begins(self, doing: str) -> bool:
        """Called before each step; False where that is to be left out."""
        return True

    def started(self, state: Reducible) -> None:
        """A search begins from this state."""

    def asked(self, reducer: str, what: str, failed: Sequence[bool | None]) -> None:
        """Questions were answered."""

    def smaller(self, reducer: str, state: Reducible) -> None:
        """A smaller state fails; its files are on disk."""

    def said(self, text: str) -> None:
        """A sentence for the person."""

    def written(self, wanted: Verification) -> None:
        """The scripts are there; they are run while the search goes on."""


@dataclass(frozen=True)
class ReducerStatistics:
    """What one reducer did: questions asked, edits that held, calls removed, seconds spent."""

    reducer: str
    queries: int
    successes: int
    calls_removed: int
    seconds: float


@dataclass(frozen=True)
class Reduction(Generic[S]):
    """The end of a search: the smallest state found, and how it was found. `complete` is False where time ran out.

    `calls` are those of a graph; of a program, what its size counts first.
    """

    state: S
    calls: int
    queries: int
    seconds: float
    complete: bool
    statistics: tuple[ReducerStatistics, ...] = ()


class OutOfBudget(Exception):
    """The time is used up; the best state so far stands."""
