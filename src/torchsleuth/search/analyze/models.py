"""A graph, or two ways to run a model, analysed in this process: `repro_analyze`, `compare_models` need no case.

A model is run three times on the same inputs, weights and random numbers: without the compiler; as Dynamo captures it,
each graph run by eager's kernels; compiled, each graph judged as it is called. What differs between the first two is
Dynamo's doing; the first graph that is judged wrong in the third is analysed value by value.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch.fx import GraphModule

from torchsleuth.core.cases.analysis import Analysis, analysis_of
from torchsleuth.script_runtime.compiling import with_reshapes
from torchsleuth.torch_core.compare.divergence.analysis import (
    OF_AOTAUTOGRAD,
    analyze,
    analyze_exposed,
    wrong_gradient,
)
from torchsleuth.torch_core.compare.divergence.distance import distance
from torchsleuth.torch_core.compare.divergence.measure import Subject, written_inputs
from torchsleuth.torch_core.compare.divergence.parts import AOT_ALONE, Compilers, aten_ways, captured_ways
from torchsleuth.torch_core.compare.reference import opkinds
from torchsleuth.torch_core.compare.reference.cloning import (
    KeptCopies,
    Snapshot,
    called_again,
    clone_inputs,
    map_tensors,
    restore,
    same_bits,
    snapshot,
)
from torchsleuth.torch_core.compare.reference.eager import run_eager
from torchsleuth.torch_core.compare.reference.memory import memory_beside, memory_counted_apart, note_run
from torchsleuth.torch_core.compare.reference.rng import RngState, restore_rng, rng_kept, save_rng
from torchsleuth.torch_core.compare.reference.trees import leaves
from torchsleuth.torch_core.compare.two_models import reduce_to_scalar_loss
from torchsleuth.torch_core.compare.verdict.judge import judge_results
from torchsleuth.torch_core.compare.verdict.verdict import DIVERGED, INCONCLUSIVE
from torchsleuth.torch_core.graphs.provenance import source_line
from torchsleuth.torch_internals import hooks as seams
from torchsleuth.torch_internals.compiled_calls import compiled_anew
from torchsleuth.torch_internals.generated_code import CompiledCode, observed_code


@dataclass(frozen=True)
class GraphComparison:
    """One call of one graph: its level ("dynamo" or "aot"), its direction, how many calls it makes, the verdict."""

    level: str
    direction: str
    calls: int
    verdict: str
    sentence: str


@dataclass(frozen=True)
class ModelComparison:
    """What came of `compare_models`: read `agrees` and `words`.

    `component` is "dynamo" where capture went wrong, "inductor" where one of its graphs is wrong, "aot_autograd" where
    only a captured graph as a whole is, "backend" of another backend. `module`, `node` and `line` are where the first
    wrong graph begins to be wrong; `differences` are whole results that differ, by path.
    """

    agrees: bool
    words: str
    component: str | None = None
    module: str | None = None
    node: str | None = None
    line: str | None = None
    differences: tuple[str, ...] = ()
    graphs: tuple[GraphComparison, ...] = ()
    analysis: Analysis | None = None

    def __str__(self) -> str:
        return self.words


def compare_models(
    eager: Callable[..., object],
    compiled: Callable[..., object] | str,
    inputs: Sequence[object],
    *,
    backward: bool = False,
) -> ModelComparison:
    """Compares a model with itself compiled: outputs, inputs and buffers that it changes, with `backward` gradients.

    `compiled` is what `torch.compile` gave, another module or function, or the name of a backend. Weights, inputs and
    random numbers are left as they were; what Dynamo had compiled in this process is forgotten.

    Used as `print(compare_models(model, torch.compile(model), [x]).words)`.
    """
    other = torch.compile(eager, backend=compiled) if isinstance(compiled, str) else compiled
    if unlike := _other_weights(eager, other):
        words = f"not one model compiled, but two: they hold other values in {', '.join(unlike[:3])}; nothing was run"
        return ModelComparison(False, words, differences=tuple(unlike))
    named = named_tensors((eager, other))
    before = snapshot(list(named.values()))
    watcher = _Watcher(KeptCopies(before), backward)
    with rng_kept() as start, compiled_anew():
        plain = ran(eager, named, before, inputs, start, backward)
        note_run([*inputs, *named.values()])
        graphs = 0

        def as_captured(call: seams.BackendCall) -> GraphModule:
            nonlocal graphs
            graphs += 1
            return call.graph

        with _hooked(seams.hook_backend_calls, as_captured):
            captured = ran(other, named, before, inputs, start, backward)
        # What was not captured was not captured wrongly.
        by_capture = differences(plain, captured) if graphs else []
        del captured
    with (
        memory_counted_apart(list(inputs)),
        rng_kept() as start,
        compiled_anew(),
        observed_code() as observed,
    ):
        watcher.observed = observed
        with (
            _hooked(seams.hook_backend_calls, watcher.on_backend),
            _hooked(seams.hook_inner_compiles, watcher.on_inner),
        ):
            result = ran(other, named, before, inputs, start, backward)
        in_all = differences(plain, result)
        gradients = any(path.endswith(".grad") for path in in_all)
        if gradients and not by_capture and all(graph.verdict != DIVERGED for graph in watcher.graphs):
            watcher.trace_gradients()
    return _comparison(watcher, by_capture, in_all)


def _comparison(watcher: _Watcher, by_capture: list[str], in_all: list[str]) -> ModelComparison:
    graphs = tuple(watcher.graphs)
    if by_capture:
        words = (
            f"captured wrongly: run as Dynamo captures it, with eager's own kernels, it differs in "
            f"{', '.join(by_capture[:3])}; every graph may agree with eager, the function does not"
        )
        return ModelComparison(False, words, "dynamo", differences=tuple(by_capture), graphs=graphs)
    wrong = sorted((graph for graph in graphs if graph.verdict == DIVERGED), key=lambda g: g.level != "aot")
    if not wrong:
        count = sum(graph.level == "dynamo" for graph in graphs)
        if not graphs:
            different = f"they differ in {', '.join(in_all[:3])}" if in_all else "they agree"
            words = f"nothing was compiled in the call; {different}"
            return ModelComparison(not in_all, words, differences=tuple(in_all))
        many = "1 graph" if count == 1 else f"{count} graphs"
        words = f"eager and compiled agree: {many}, and what it changes"
        unclear = [graph.sentence for graph in graphs if graph.verdict == INCONCLUSIVE]
        if unclear:
            words += f"; {len(unclear)} of them cannot be judged ({unclear[0]})"
        if in_all:
            words += f"; {', '.join(in_all[:3])} differ in more than the last bits, as far as rounding may move them"
        return ModelComparison(True, words, graphs=graphs)
    found = watcher.analysis
    culprit = found.culprit if found is not None else None
    of_aot = watcher.inner or (culprit is not None and culprit.how == OF_AOTAUTOGRAD)
    component = {"aot": "inductor"}.get(wrong[0].level, "aot_autograd" if of_aot else "backend")
    where = found.words if found is not None else wrong[0].sentence
    return ModelComparison(
        False,
        f"{component}, {wrong[0].direction}: {where}",
        component,
        culprit.module if culprit is not None else None,
        culprit.node if culprit is not None else None,
        culprit.user_line if culprit is not None else None,
        tuple(in_all),
        graphs,
        found,
    )


@dataclass
class _Watcher:
    """Judges each graph as it is called, and analyses the first that is wrong."""

    copies: KeptCopies
    backward: bool = False
    graphs: list[GraphComparison] = field(default_factory=list)
    analysis: Analysis | None = None
    # Of a call with backward, what is needed to take a captured graph apart afterwards.
    captured: list[tuple[GraphModule, seams.BackendCall, list[object]]] = field(default_factory=list)
    observed: list[CompiledCode] = field(default_factory=list)
    inner: int = 0
    busy: bool = False

    def on_backend(self, call: seams.BackendCall) -> Callable[..., object]:
        if self.busy:
            return call.as_without_us()
        graph = _copied(call.graph)
        compiled = call.as_without_us()

        def run(*args: object) -> object:
            if self.busy:
                return compiled(*args)
            before = self.copies.of(args)
            if self.backward:
                self.captured.append((graph, call, before))
            with self.copies.remembered(args, before):
                exposed = partial(self._exposed, graph, call, before)
                return self._judged("dynamo", "forward", graph, compiled, args, before, exposed)

        return run

    def on_inner(self, call: seams.InnerCompile) -> object:
        if self.busy:
            return call.as_without_us()
        graph = with_reshapes(_copied(call.graph))
        compiled = call.as_without_us()
        self.inner += 1
        code = self.observed[-1] if self.observed else None
        direction = "backward" if call.kwargs.get("is_backward") else "forward"

        def wrapped(inner: Callable[..., object]) -> Callable[..., object]:
            def run(args: list[object]) -> object:
                if self.busy:
                    return inner(args)
                held, before, state = list(args), self.copies.of(args), save_rng()

                def analysed() -> Analysis | None:
                    if code is None or not code.written:
                        return None
                    with called_again(held, before, self.copies.weights_among(held)) as fresh:
                        subject = subject_of(graph, before, inner, code, state, fresh)
                        parts = analyze(subject, aten_ways(call.kwargs), lambda message: None)
                    return finished(graph, parts)

                return self._judged("aot", direction, graph, inner, args, before, analysed, state)

            return run

        return seams.replace_callable(compiled, wrapped)

    def _judged(
        self,
        level: str,
        direction: str,
        graph: GraphModule,
        compiled: Callable[..., object],
        args: Sequence[object],
        before: list[object],
        analysed: Callable[[], Analysis | None],
        state: RngState | None = None,
    ) -> object:
        """The call as it is, with a verdict on what it returns and writes.

        What is made of a graph that was found wrong needs none: another would say the same of more calls.
        """
        state = save_rng() if state is None else state
        held = list(args)
        known = len(self._wrong())
        result = compiled(args) if level == "aot" else compiled(*args)
        if len(self._wrong()) > known:
            return result
        self.busy = True
        try:
            with rng_kept(), torch.no_grad():
                after = None if direction == "backward" else held
                verdict = judge_results(
                    graph,
                    before,
                    None,
                    detached(result),
                    mutated_inputs_after=after,
                    rng_matched=True,
                    rng_state=state,
                )
                self._note(level, direction, graph, verdict.kind, verdict.sentence)
                if verdict.kind == DIVERGED and self.analysis is None:
                    self.analysis = analysed()
        finally:
            self.busy = False
        return result

    def _wrong(self) -> list[GraphComparison]:
        return [graph for graph in self.graphs if graph.verdict == DIVERGED]

    def _note(self, level: str, direction: str, graph: GraphModule, verdict: str, sentence: str) -> None:
        calls = sum(n.op.startswith("call_") for n in graph.graph.nodes)
        self.graphs.append(GraphComparison(level, direction, calls, verdict, sentence))

    def _exposed(self, graph: GraphModule, call: seams.BackendCall, given: list[object]) -> Analysis | None:
        """A captured graph that is wrong as a whole, compiled once more with every value returned."""
        why = "the graphs that Inductor got agree" if self.inner else f"{call.name} shows no values"
        parts = analyze_exposed(graph, given, _ways_of(call), lambda message: None, why)
        return finished(graph, parts)

    def trace_gradients(self) -> None:
        """Where every graph is right and gradients are not: the call of a captured graph whose gradient is wrong."""
        alone = captured_ways(AOT_ALONE, {})
        for graph, call, given in self.captured:
            culprit = wrong_gradient(graph, given, _ways_of(call), lambda message: None, None, alone)
            if culprit is not None:
                self.analysis = finished(graph, {"culprit": culprit})
                self._note("dynamo", "backward", graph, DIVERGED, self.analysis.words)
                return


def _ways_of(call: seams.BackendCall) -> Compilers:
    """Parts of a captured graph go the way of the whole."""

    def compiled(part: GraphModule, values: Sequence[object]) -> Callable[[list[object]], object]:
        run = call.compile(_copied(part), list(values))
        return lambda given: run(*given)

    return Compilers(compiled)


def _copied(graph: GraphModule) -> GraphModule:
    """The graph before a compiler changes it, on the same tensors."""
    return GraphModule(graph, copy.deepcopy(graph.graph))


@contextlib.contextmanager
def _hooked(hook: Callable[..., Callable[[], None]], handler: Callable[..., object]) -> Iterator[None]:
    undo = hook(handler)
    try:
        yield
    finally:
        undo()


def repro_analyze(gm: GraphModule, inputs: Sequence[object], *, without: Collection[str] = ()) -> Analysis:
    """Where a graph of aten operators, compiled by Inductor, leaves eager's way on these inputs.

    `without` are phases to leave out: "accumulated", "local", "determinism", "inside", "substitution". Inputs and
    random numbers are left as they were. A compiler that crashes takes this process along: `torchsleuth analyze` of a
    case does not. Used as `print(repro_analyze(gm, [x]).words)`.
    """
    graph = with_reshapes(gm)
    given = list(inputs)
    ways = aten_ways({"is_inference": not any(getattr(value, "requires_grad", False) for value in given)})
    with rng_kept() as state, torch.no_grad(), compiled_anew(), observed_code() as observed:
        compiled = ways.compiled(gm, given)
        code = observed[0] if observed else None
        with memory_beside(lambda: compiled(clone_inputs(given)), given):
            subject = None if code is None else subject_of(graph, given, compiled, code, state)
            if subject is None or not subject.seen:
                why = "its code shows no values" if code is None else code.blind or "its code shows no values"
                parts = analyze_exposed(graph, given, ways, lambda message: None, why)
            else:
                parts = analyze(subject, ways, lambda message: None, without)
    return finished(graph, parts)


def subject_of(
    graph: GraphModule,
    inputs: list[object],
    call: Callable[[list[object]], object],
    code: CompiledCode,
    state: RngState,
    fresh: Callable[[], list[object]] | None = None,
) -> Subject:
    """A compiled aten graph whose nodes have the names of `graph`; every call draws from the random state `state`."""

    def seeded(values: list[object]) -> object:
        restore_rng(state)
        return call(values)

    drawn = None
    if any(opkinds.may_draw(node) for node in graph.graph.nodes):
        restore_rng(state)
        drawn = run_eager(graph, inputs, None)[1]
    calls = {node.name for node in graph.graph.nodes if node.op.startswith("call_")}
    names = {name: name for name in code.nodes if name in calls} | written_inputs(graph)
    return Subject(graph, inputs, seeded, code, names, drawn, fresh=fresh)


def finished(graph: GraphModule, parts: dict[str, object]) -> Analysis:
    """The parts of an answer as an analysis, with the lines that the graph's nodes know."""
    found = {node.name: source_line(node) for node in graph.graph.nodes}
    lines = {name: line for name, line in found.items() if line is not None}
    return replace(analysis_of(parts, lines), complete=True)


def ran(
    model: Callable[..., object],
    named: dict[str, torch.Tensor],
    before: Snapshot,
    inputs: Sequence[object],
    start: RngState,
    backward: bool,
) -> dict[str, object]:
    """What a call returns and changes, by path; afterwards everything is as it was `before`.

    `named` are the model's tensors. What a call does not change is not copied: there the model's own tensors and the
    inputs are given. Used as `ran(model, named, snapshot([*named.values()]), [x], save_rng(), False)["outputs"]`.
    """
    gradients = {name: t.grad for name, t in named.items() if t.requires_grad}
    given = clone_inputs(list(inputs))
    restore_rng(start)
    try:
        for name in gradients:
            named[name].grad = None
        out = model(*given)
        if backward:
            reduce_to_scalar_loss(out).backward()
        found = dict(leaves(clone_inputs(detached(out))))
        for place, (old, new) in enumerate(zip(inputs, given)):
            if isinstance(old, torch.Tensor) and same_bits(old, new):
                found[f"inputs[{place}]"] = old.detach()
            else:
                found[f"inputs[{place}]"] = _plain(new)
        pairs = zip(before.originals, before.copies)
        written = {id(now) for now, then in pairs if not same_bits(now, then)}
        for name, tensor in named.items():
            found[_own_name(name)] = _plain(tensor) if id(tensor) in written else tensor.detach()
        if backward:
            leaves_given = {p: v for p, v in enumerate(given) if isinstance(v, torch.Tensor) and v.is_leaf}
            wanting = {f"inputs[{place}].grad": value.grad for place, value in leaves_given.items()}
            wanting |= {f"{_own_name(name)}.grad": named[name].grad for name in gradients}
            found |= {path: clone_inputs(grad) for path, grad in wanting.items() if grad is not None}
        return found
    finally:
        restore(before)
        for name, gradient in gradients.items():
            named[name].grad = gradient


def named_tensors(models: Sequence[object]) -> dict[str, torch.Tensor]:
    """Parameters and buffers of those of the models that are modules: `named_tensors([torch.nn.Linear(2, 2)])`."""
    held: dict[int, torch.nn.Module] = {id(m): m for m in models if isinstance(m, torch.nn.Module)}
    return {name: t for m in held.values() for name, t in [*m.named_parameters(), *m.named_buffers()]}


def _other_weights(eager: object, other: object) -> list[str]:
    """The parameters and buffers that both have and that hold other values."""
    if not (isinstance(eager, torch.nn.Module) and isinstance(other, torch.nn.Module)):
        return []
    ours, theirs = ({_own_name(n): t for n, t in named_tensors([each]).items()} for each in (eager, other))
    common = [name for name in ours if name in theirs and ours[name] is not theirs[name]]
    return [name for name in common if not same_bits(ours[name], theirs[name])]


def _own_name(name: str) -> str:
    """`torch.compile` of a module puts its own name in front of every other."""
    return name.removeprefix("_orig_mod.")


def _plain(value: object) -> object:
    return clone_inputs(value.detach()) if isinstance(value, torch.Tensor) else value


def differences(eager: dict[str, object], other: dict[str, object]) -> list[str]:
    """The paths at which two runs differ by more than the last bits.

    >>> differences({"outputs": torch.ones(2)}, {"outputs": torch.zeros(2)})
    ['outputs']
    """
    found = [path for path in eager if path not in other] + [path for path in other if path not in eager]
    for path in eager.keys() & other.keys():
        ours, theirs = eager[path], other[path]
        if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
            alike = ours.shape == theirs.shape and ours.dtype == theirs.dtype
            if not alike or (not same_bits(ours, theirs) and distance(theirs, ours, None).far):
                found.append(path)
        elif type(ours) is not type(theirs) or not _equal(ours, theirs):
            found.append(path)
    return sorted(found)


def _equal(ours: object, theirs: object) -> bool:
    with contextlib.suppress(Exception):  # a user's own type may not know
        return bool(ours == theirs or ours != ours)
    return True


def detached(tree: object) -> object:
    """The tree with tensors that autograd knows nothing of: `detached([x])[0].requires_grad` is False."""
    return map_tensors(tree, torch.Tensor.detach)
