"""Making states from graphs and values, checking that one hangs together, and the trial that asks about one.

A state carries values only where they may matter: for a failure in compilation any value of the right form will
do. Each input has memory of its own unless the graph writes into one of them. In a trial the graph is text,
inputs are descriptions, and values lie in a store.

What a search has to know of a state beside whether it fails are `Questions`: values, shapes, noise, definitions. The
host runs no kernel, no fake kernel and no code of the user's; a trial that dies while it answers costs an answer alone.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.record import AmbientState, CompileSettings, GraphRecord
from torchsleuth.core.change_table import INTERPRETED, UNCOMPILED
from torchsleuth.core.changes import NOTHING
from torchsleuth.core.processes.limits import Limits, within
from torchsleuth.core.protocol.codec import Document
from torchsleuth.core.protocol.trials import Outcome, Question, Trial
from torchsleuth.script_runtime.inputs import load_inputs
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.minify.contract import Input, State
from torchsleuth.search.workers.queue import TrialQueue
from torchsleuth.torch_core.compare.reference.cloning import clone_inputs
from torchsleuth.torch_core.compare.verdict.tolerances import Tolerances
from torchsleuth.torch_core.graphs.cut import Cut
from torchsleuth.torch_core.graphs.printer import print_graph
from torchsleuth.torch_core.graphs.recording import (
    Recorded,
    RecordedTensor,
    Recording,
    record_values,
    recording_from_json,
)
from torchsleuth.torch_core.tensors import (
    ContentStoreWriter,
    InputsDescription,
    ScalarSpec,
    TensorSpec,
    describe_inputs,
)
from torchsleuth.torch_internals.decompositions import fake_results, forms_of
from torchsleuth.torch_internals.schemas import may_write


def state_of(
    graph: torch.fx.GraphModule,
    values: Sequence[object],
    *,
    fakes: Sequence[object] | None = None,
    settings: CompileSettings | None = None,
    any_values: bool = False,
) -> State:
    """A state of a graph and its real inputs; with `any_values` the values themselves are dropped.

    >>> state_of(gm, [torch.ones(2)]).inputs[0].name
    'x'
    """
    description = describe_inputs(list(values), fakes)
    names = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
    inputs = tuple(
        Input(name, spec, value if not any_values and isinstance(spec, TensorSpec) else None)
        for name, spec, value in zip(names, description.inputs, values, strict=True)
    )
    return State(
        graph, inputs, dict(description.symbols), settings or CompileSettings(), any_values=any_values
    )


def state_of_cut(state: State, piece: Cut, recording: Recording) -> State:
    """The state of a piece cut out of a state's graph, with the values that were recorded.

    Each of its inputs has memory of its own, unless something is written into one of them.
    """
    writes = any(may_write(n) for n in piece.graph.graph.nodes)
    known = {i.name: i for i in state.inputs}
    names = [n.name for n in piece.graph.graph.nodes if n.op == "placeholder"]
    specs = _with_aliases(piece.values) if writes else [_apart(value) for value in piece.values]
    inputs = []
    for name, spec, value in zip(names, specs, piece.values, strict=True):
        # What was free to have any value stays so.
        free = state.any_values or (name in known and known[name].value is None)
        kept = None
        if isinstance(value, RecordedTensor) and not free and value.spec.layout != "zero":
            kept = recording.load(value) if writes else by_itself(recording.load(value))
        inputs.append(Input(name, spec, kept))
    settings = with_visible_outputs(state.settings, piece.graph)
    made = state.having(graph=piece.graph, inputs=tuple(inputs), symbols=recording.symbols, settings=settings)
    return with_bound_symbols(made)


def _apart(value: Recorded) -> TensorSpec | ScalarSpec:
    """The description of a value on memory of its own, no larger than it reaches."""
    if not isinstance(value, RecordedTensor):
        assert isinstance(value, ScalarSpec)
        return value
    spec = value.spec
    reach = 1 + sum((n - 1) * step for n, step in zip(spec.shape, spec.stride)) if 0 not in spec.shape else 0
    size = reach * getattr(torch, spec.dtype).itemsize
    moved = replace(spec, storage_offset=0, offset_expr=None)
    return replace(moved, storage=None, storage_nbytes=size, is_parameter=False)


def _with_aliases(values: Sequence[Recorded]) -> list[TensorSpec | ScalarSpec]:
    """The descriptions of values that may share memory, with who shares with whom."""
    tensors = [v for v in values if isinstance(v, RecordedTensor)]
    shared = [m for m, count in Counter(v.memory for v in tensors).items() if count > 1]
    first: dict[int, int] = {}
    specs: list[TensorSpec | ScalarSpec] = []
    for place, value in enumerate(values):
        if isinstance(value, RecordedTensor):
            same = first.setdefault(value.identity, place)
            group = shared.index(value.memory) if value.memory in shared else None
            spec = replace(value.spec, storage=None, alias_of=group, same_as=None if same == place else same)
            specs.append(spec)
        else:
            assert isinstance(value, ScalarSpec)
            specs.append(value)
    return specs


def with_visible_outputs(settings: CompileSettings, graph: torch.fx.GraphModule) -> CompileSettings:
    """The settings with every output of the graph marked as one that the user sees, where they mark any."""
    if not settings.visible_outputs:
        return settings
    return replace(settings, visible_outputs=tuple(range(len(graph.graph.output_node().args[0]))))


def by_itself(value: torch.Tensor) -> torch.Tensor:
    """The tensor with the same strides on memory of its own, no larger than it reaches.

    >>> by_itself(torch.zeros(9)[3:5]).untyped_storage().nbytes()
    8
    """
    span = 0 if value.numel() == 0 else 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride()))
    with torch.no_grad():
        flat = value.detach().as_strided((span,), (1,)).clone()
        return flat.as_strided(value.shape, value.stride()).requires_grad_(value.requires_grad)


def real_inputs(state: State) -> list[object]:
    """The inputs to run a state with, made anew: kept values where there are any, else values from a seed."""
    described = state.description.to_json()
    values = load_inputs(dict(described))
    for place, given in enumerate(state.inputs):
        if given.value is not None:
            values[place] = given.value
    return list(clone_inputs(values))


@contextlib.contextmanager
def ambient(state: State) -> Iterator[None]:
    """Grad mode and autocast under which a graph of Dynamo's ran; after AOTAutograd both are written out in it.

    Used as `with ambient(state): state.graph(*real_inputs(state))`.
    """
    world = state.settings.state or AmbientState()
    captured = state.settings.level != "aot"
    needed = any(spec.requires_grad for _, spec in state.tensors)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(captured and needed and world.grad))
        for kind, dtype in world.autocast.items() if captured else ():
            stack.enter_context(torch.autocast(kind, dtype=getattr(torch, dtype.removeprefix("torch."))))
        yield


@dataclass(frozen=True)
class Shapes:
    """What each node yields, as text that is equal for what looks alike; `why` they do not go together, if so."""

    forms: Mapping[str, str]
    why: str | None


def shapes_here(state: State) -> Shapes:
    """The shapes of a state, worked out in this process."""
    numbers = [i.spec.value if isinstance(i.spec, ScalarSpec) else None for i in state.inputs]
    found, error = fake_results(state.graph, state.description.to_json(), numbers)
    return Shapes(forms_of(found), None if error is None else str(error))


# Who works out shapes: this process, or, in the search host, a trial; a fake kernel can end a process as well.
SHAPES: ContextVar[Callable[[State], Shapes]] = ContextVar("SHAPES", default=shapes_here)


def shapes_of(state: State) -> Shapes:
    """The shapes of a state, by whoever works them out: `shapes_of(state).why is None`."""
    return SHAPES.get()(state)


def checked(state: State | None) -> State | None:
    """The state where its shapes and dtypes go together, else None; what cannot be worked out counts as no."""
    return None if state is None or shapes_of(state).why is not None else state


def record_here(state: State) -> Recording:
    """The eager values of a state's nodes, from a run in this process; symbolic ones where sizes are symbolic."""
    numbers = [i.spec.value if isinstance(i.spec, ScalarSpec) else None for i in state.inputs]
    described = state.description.to_json()
    symbolic = fake_results(state.graph, described, numbers)[0] if state.symbols else {}
    with ambient(state):
        return record_values(state.graph, real_inputs(state), symbolic=symbolic)


def with_bound_symbols(state: State) -> State:
    """The state with an input for each symbol that no size tells by itself, and without unused symbols."""
    if not state.symbols:
        return state
    used: dict[str, None] = {}
    bound: set[str] = set()
    for given in state.inputs:
        for text in _expressions(given):
            names = [name for name in re.findall(r"[A-Za-z_]\w*", text) if name in state.symbols]
            used.update(dict.fromkeys(names))
            bound.update(name for name in names if name == text)
    missing = [name for name in used if name not in bound]
    symbols = {name: spec for name, spec in state.symbols.items() if name in used}
    if not missing:
        return state.having(symbols=symbols)
    graph = copy.deepcopy(state.graph)
    first = next(iter(graph.graph.nodes))
    extra = []
    with graph.graph.inserting_before(first):
        for name in missing:
            node = graph.graph.placeholder(f"size_{name}")
            extra.append(Input(node.name, ScalarSpec("symint", symbols[name].hint, name)))
    graph.recompile()
    return state.having(graph=graph, inputs=(*extra, *state.inputs), symbols=symbols)


def _expressions(given: Input) -> list[str]:
    if isinstance(given.spec, ScalarSpec):
        return [given.spec.expr] if given.spec.expr else []
    texts = [*(given.spec.shape_expr or ()), *(given.spec.stride_expr or ())]
    return texts + ([given.spec.offset_expr] if given.spec.offset_expr else [])


def trial_of(state: State, expected: Signature, store: Path, *, values: bool = True) -> Trial:
    """A state as a Trial; values that matter go to the tensor store, each once, unless the question is not about them.

    >>> trial_of(state, Signature("crash", "run"), Path("values")).placeholders
    ('x',)
    """
    printed = print_graph(state.graph)
    settings = state.settings
    if state.static_names is not None:
        places = [place for place, given in enumerate(state.inputs) if given.name in state.static_names]
        settings = replace(settings, compile_kwargs={**settings.compile_kwargs, "static_input_idxs": places})
    return Trial(
        printed.source,
        expected,
        settings,
        placeholders=tuple(i.name for i in state.inputs),
        inputs=(kept_description(state, store) if values else state.description).to_json(),
        constants=_constants(printed.constants, store, state.constant_devices),
        measure_noise=expected.kind == "accuracy",
        change=INTERPRETED if state.interpreted else NOTHING,
        embedded=state.embedded.source,
        imports=tuple(dict.fromkeys([*printed.imports, *state.embedded.imports])),
        store=str(store),
    )


# A graph that takes longer in eager, for which no clock was given, is taken for hung.
EAGER_SECONDS = 120.0
# Nothing in particular is expected of these.
_ANYTHING = Signature("runtime_error", "run")


class NoAnswer(SleuthError):
    """A trial could not answer; says what it was asked and how it ended.

    `died` where its process was lost over the question; else it could not be asked here.
    """

    def __init__(self, why: str, *, died: bool = False) -> None:
        super().__init__(why)
        self.died = died


@dataclass
class Questions:
    """Asks `workers`; values lie in the folder `store`, which is the host's own and goes with it.

    `begins` is called with what comes next, and gives False where that is to be left out; `deadline` is of
    time.monotonic.
    """

    workers: TrialQueue
    store: Path
    begins: Callable[[str], bool] = lambda doing: True
    deadline: float | None = None
    _recordings: dict[str, Recording] = field(default_factory=dict)
    _shapes: dict[str, Shapes] = field(default_factory=dict)
    _told: dict[tuple[str, str | None], Document] = field(default_factory=dict)

    def recording(self, state: State) -> Recording:
        """What every node of a state's graph yields in eager; raises `NoAnswer` where that cannot be found out.

        A graph that cannot be run is described by its shapes, where values play no part.
        """
        key = state.key
        if key not in self._recordings:
            expected = Signature("compile_error", "compile") if state.any_values else _ANYTHING
            trial = trial_of(state, expected, self.store)
            try:
                found = self._asked(trial, Question.RECORD, EAGER_SECONDS)
            except NoAnswer:
                if not state.any_values:
                    raise
                found = self._asked(trial, Question.RECORD_FAKE, EAGER_SECONDS)
            self._recordings[key] = recording_from_json(found["recording"], state.graph, self.store)
        return self._recordings[key]

    def shapes(self, state: State) -> Shapes:
        """What each node of a state's graph yields by shape, and why they do not go together, where they do not."""
        key = state.having(inputs=tuple(replace(i, value=None) for i in state.inputs)).key
        if key not in self._shapes:
            try:
                found = self._asked(trial_of(state, _ANYTHING, self.store, values=False), Question.SHAPES)
                self._shapes[key] = Shapes(found["forms"], found["why"])
            except NoAnswer as why:
                self._shapes[key] = Shapes({}, str(why))
        return self._shapes[key]

    def tolerances(self, state: State) -> Tolerances:
        """How far rounding alone moves the results of a state; nothing where that cannot be measured."""
        try:
            found = self._asked(trial_of(state, _ANYTHING, self.store), Question.NOISE, EAGER_SECONDS)
        except NoAnswer:
            return Tolerances()
        return Tolerances(**found["noise"])

    def passes_in_eager(self, state: State, expected: Signature) -> bool:
        """Whether a state's graph runs without the compiler; it is asked as triage asks, and answered once."""
        trial = trial_of(state, expected, self.store)
        in_eager = replace(trial, change=UNCOMPILED, stop_early=False)
        outcome = self.workers.run(in_eager, limits=self._limits(EAGER_SECONDS))
        return outcome.signature is None and outcome.error is None

    def eager_seconds(self, state: State) -> float | None:
        """How long a run without the compiler takes; None where that cannot be measured."""
        try:
            return self._asked(trial_of(state, _ANYTHING, self.store), Question.EAGER_SECONDS)["seconds"]
        except NoAnswer:
            return None

    def schemas(self, record: GraphRecord, source: str, store: str | None) -> list[str]:
        """The schemas of the operators that a recorded graph calls, those of the user's own among them."""
        trial = Trial(
            source,
            _ANYTHING,
            CompileSettings(),
            constants=record.constants,
            inputs={"inputs": []},
            embedded=record.embedded.source,
            imports=(*record.imports, *record.embedded.imports),
            store=store,
        )
        return self._asked(trial, Question.DEFINITIONS)["schemas"]

    def foreign_script(self, script: Path, store: Path) -> Document:
        """What a script of PyTorch's own minifier holds; its tensors go to `store`."""
        return self._asked(Trial(str(script), _ANYTHING, store=str(store)), Question.FOREIGN_SCRIPT)

    def _asked(self, trial: Trial, question: Question, seconds: float | None = None) -> Document:
        limits = self._limits(seconds)
        asked = replace(trial, question=question)
        known = asked.key, asked.store
        if known not in self._told:
            outcome = self.workers.run(asked, limits=limits, fresh=True)
            if outcome.error is not None or outcome.signature is not None:
                died = outcome.signature is not None
                raise NoAnswer(f"{question.value}: {_how(outcome, limits)}", died=died)
            self._told[known] = outcome.value
        return self._told[known]

    def _limits(self, seconds: float | None) -> Limits:
        limits = within(self.workers.limits, self.deadline)
        return limits if seconds is None else replace(limits, run=min(limits.run, seconds))


def _how(outcome: Outcome, limits: Limits) -> str:
    """How a trial ended that did not answer; nothing was compiled in it, as a signature's summary would say."""
    signature = outcome.signature
    if outcome.error is not None or signature is None:
        return outcome.error or ""
    if outcome.seen.ended_for is not None:
        return outcome.text.partition("\n")[0]
    if signature.kind == "hang":
        return f"it was not done after {limits.seconds(signature.phase):g} s"
    return f"its process ended with {signature.signal}"


def kept_description(state: State, store: Path) -> InputsDescription:
    """The inputs of a state with their values in the store."""
    writer = ContentStoreWriter(store)
    specs = []
    for given in state.inputs:
        spec = given.spec
        if isinstance(spec, TensorSpec) and given.value is not None:
            spec = replace(spec, storage=writer.write_storage(given.value.untyped_storage()))
        specs.append(spec)
    return InputsDescription(tuple(specs), state.symbols)


def _constants(constants: Mapping[str, object], store: Path, devices: Mapping[str, str]) -> dict[str, object]:
    if not constants:
        return {}
    description = describe_inputs(list(constants.values()), None, ContentStoreWriter(store))
    specs = [
        replace(spec, device=devices[name]) if isinstance(spec, TensorSpec) and name in devices else spec
        for name, spec in zip(constants, description.inputs)
    ]
    description = replace(description, inputs=tuple(specs))
    return {"names": list(constants), "description": description.to_json()}
