"""Fewer calls: any set of nodes is a candidate, because each missing operand has a recorded value.

Elements are the units that cannot be cut apart. Repetition is used: a deep model holds few kinds of nodes, so
one of each kind, side by side, is a small question that finds any single culprit. Where a failure names the results
that are wrong, a part with all its values returned shows where they begin.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from torchsleuth.search.minify.contract import State
from torchsleuth.search.minify.engine import AsksSubsets, Engine
from torchsleuth.search.minify.reducers.gradients import gradient_of_part, lone_gradient
from torchsleuth.search.minify.states import record_here, state_of_cut
from torchsleuth.search.minify.subsets import (
    Ask,
    Elements,
    NothingFails,
    Subset,
    in_parts,
    one_less,
    pointed_at,
    smallest_failing,
)
from torchsleuth.torch_core.graphs.cut import cut, units
from torchsleuth.torch_core.graphs.recording import RecordedTensor, Recording
from torchsleuth.torch_internals.schemas import may_write

NAME = "nodes"
# How far around one of each kind its cover reaches: alone with what it reads, and a little more.
REACH = (1, 3)
# Each value that a graph returns is kept a dozen times over, for its rounding noise.
MOST_EXPOSED = 64 << 20


def reduce_nodes(
    engine: Engine[State], state: State, seeds: Sequence[str] = (), coarse: bool = False
) -> State:
    """The state with as few calls as still fail; `seeds` are names of nodes that may be to blame, best first.

    With `coarse`, what single calls can be left out is not asked: half of the questions.
    """
    whole = _Whole(engine, state)
    if not whole.groups:
        return state
    gradient = lone_gradient(whole.recording)
    if gradient is not None and (before := whole.groups_before(gradient)):
        with contextlib.suppress(NothingFails):
            return _reduce_differentiated(whole, before, seeds, gradient)
    best = smallest_failing(
        whole.elements(seeds),
        whole.ask(),
        whole.ask(apart=True),
        whole.suspects,
        _racer(whole),
        _pointer(whole),
        engine.width,
        coarse,
    )
    if not coarse:
        whole.fewest_names(best, whole.groups)
    return engine.best


def _reduce_differentiated(
    whole: _Whole, groups: Sequence[tuple[str, ...]], seeds: Sequence[str], gradient: str
) -> State:
    """The state as the gradient of as few calls as still fail; what is done with the gradient is left out."""
    ask = whole.ask(groups, gradient=gradient)
    best = smallest_failing(whole.elements(seeds, groups), ask, width=whole.engine.width)
    if ask([best]) is None:
        raise NothingFails("the gradient by itself does not fail")
    whole.fewest_names(best, groups, gradient=gradient)
    return whole.engine.best


def cut_at_first_wrong(engine: Engine[State], state: State, seeds: Sequence[str] = ()) -> State:
    """The state as a few calls that end in the first whose value is wrong, where one question can tell which that is.

    An analysis may have found which: the first of `seeds` is asked about by itself.

    One of each kind of call is evaluated as lowered, all values returned: for no part of a large graph is a kernel
    compiled before it is known where to look. Where that shows nothing, the state is as it was.
    """
    if not engine.oracle.names_outputs:
        return state
    whole = _Whole(engine, state)
    named = [(number,) for number, group in enumerate(whole.groups) if seeds and seeds[0] in group]
    if named and whole.ask()(named) is not None:
        return engine.best
    if whole.too_large_to_expose:
        return state
    elements = whole.elements()
    interpreted = whole.ask(exposed=True, interpreted=True)
    covers = [*elements.covers, tuple(range(len(whole.groups)))][:1]
    pointed_at(elements, covers, whole.ask(), lambda each: interpreted(each) is not None, whole.suspects)
    return engine.best


def without_operators_of(engine: Engine[State], state: State, finds: Sequence[State]) -> State | None:
    """The state with every call left to eager of an operator that one of `finds` calls; it returns what the state does.

    None where nothing is left to compile, or where that cannot be cut out. All calls of an operator are left out, since
    one that is wrong is mostly wrong wherever it stands.
    """
    recording = _recording(engine, state)
    found = {_called(node) for find in finds for node in find.graph.graph.nodes}
    left = {name for name in recording.calls if _called(recording.nodes[name]) in found}
    kept: set[str] = set()
    for name in reversed(recording.calls):
        node = recording.nodes[name]
        needed = name in recording.returned or may_write(node) or any(u.name in kept for u in node.users)
        if needed and name not in left:
            kept.add(name)
    if not kept:
        return None
    made = state_of_cut(state, cut(recording, kept), recording)
    # What cannot be cut apart comes along.
    return None if any(_called(node) in found for node in made.graph.graph.nodes if _called(node)) else made


def _called(node: torch.fx.Node) -> tuple[str, str] | None:
    return (node.op, str(node.target)) if node.op.startswith("call_") else None


def first_half(state: State) -> State | None:
    """The first half of a state's calls, which yields the last of them; None where those cannot stand alone.

    Used as `settles_for(quicker, first_half(state))`.
    """
    whole = copy.deepcopy(state.graph)
    calls = [node for node in whole.graph.nodes if node.op.startswith("call_")]
    if len(calls) < 2 or any(node.op == "get_attr" for node in whole.graph.nodes):
        return None
    whole.graph.output_node().args = ((calls[len(calls) // 2 - 1],),)
    whole.graph.eliminate_dead_code()
    whole.recompile()
    return replace(state, graph=whole)


def _recording(engine: Engine[State], state: State) -> Recording:
    return engine.oracle.recording(state) or record_here(state)


class _Whole:
    """The state that is cut into parts: what each node yields, and the groups of nodes that cannot be cut apart."""

    def __init__(self, engine: Engine[State], state: State) -> None:
        self.engine, self.state = engine, state
        self.recording = _recording(engine, state)
        self.groups = units(self.recording)

    def ask(
        self,
        parts: Sequence[tuple[str, ...]] | None = None,
        *,
        apart: bool = False,
        exposed: bool = False,
        interpreted: bool = False,
        gradient: str | None = None,
    ) -> AsksSubsets[State]:
        """Whether sets of parts fail, of the groups where none are given: `whole.ask(exposed=True)([(1, 2)])`.

        They are connected or `apart`; with all their values `exposed` or only the last; with their lowered form
        `interpreted` or compiled; `gradient` is the call that takes the gradient of whatever subset is asked about.
        """
        parts = self.groups if parts is None else parts
        severed_or_exposed = apart or exposed

        def cut_out(subset: Subset) -> State | None:
            names = {name for element in subset for name in parts[element]}
            if gradient is not None:
                piece = cut(self.recording, {*names, gradient})
                part = gradient_of_part(piece, gradient, self.recording)
                return None if part is None else state_of_cut(self.state, part, self.recording)
            if len(names) == len(self.recording.calls) and not severed_or_exposed:
                return self.state
            piece = cut(self.recording, names, severed=apart, exposed=exposed)
            return state_of_cut(self.state, piece, self.recording).having(interpreted=interpreted)

        return AsksSubsets(
            self.engine, NAME, len(parts), cut_out, lambda subset: not severed_or_exposed or len(subset) == 1
        )

    def elements(
        self, seeds: Sequence[str] = (), groups: Sequence[tuple[str, ...]] | None = None
    ) -> Elements:
        """The groups as numbers, with who touches whom, who is blamed and one of each kind.

        Of blamed groups of one kind only the first is tried by itself where they are alike, that is, where values do
        not matter.
        """
        groups, nodes = self.groups if groups is None else groups, self.recording.nodes
        owner = {name: number for number, group in enumerate(groups) for name in group}
        before: list[list[int]] = []
        for number, group in enumerate(groups):
            sources = [s for name in group for s in nodes[name].all_input_nodes]
            found = dict.fromkeys(owner[s.name] for s in sources if s.name in owner)
            before.append([source for source in found if source != number])
        neighbours: list[list[int]] = [list(sources) for sources in before]
        for number, each in enumerate(before):
            for source in each:
                neighbours[source].append(number)
        kinds = ["; ".join(_kind(self.recording, nodes[name]) for name in group) for group in groups]
        blamed = list(dict.fromkeys(owner[name] for name in seeds if name in owner))
        first = {kinds[seed]: seed for seed in reversed(blamed)}
        return Elements(
            len(groups),
            neighbours,
            [seed for seed in blamed if not self.state.any_values or first[kinds[seed]] == seed],
            [_cover(kinds, before, reach) for reach in REACH],
            _firsts(kinds),
            tuple(sorted(blamed)),
        )

    def groups_before(self, gradient: str) -> list[tuple[str, ...]]:
        """The groups that end before the call that takes the gradient."""
        steps = self.recording.steps
        return [group for group in self.groups if max(steps[name] for name in group) < steps[gradient]]

    def suspects(self) -> list[int]:
        """Whom the last failure points at, as numbers of groups."""
        owner = {name: number for number, group in enumerate(self.groups) for name in group}
        return list(dict.fromkeys(owner[name] for name in self.engine.oracle.suspects if name in owner))

    def fewest_names(
        self, best: Subset, groups: Sequence[tuple[str, ...]], gradient: str | None = None
    ) -> None:
        """Now name by name: of a tuple's parts only those that matter stay."""
        kept = [(name,) for element in best for name in groups[element]]
        one_less(tuple(range(len(kept))), self.ask(kept, gradient=gradient))

    @property
    def too_large_to_expose(self) -> bool:
        values = [self.recording.value(name) for group in self.groups for name in group]
        sizes = [
            math.prod(value.spec.shape) * getattr(torch, value.spec.dtype).itemsize
            for value in values
            if isinstance(value, RecordedTensor)
        ]
        return sum(sizes) > MOST_EXPOSED


def _pointer(whole: _Whole) -> Callable[[Sequence[Subset]], bool] | None:
    """Asks covers with all their values exposed, where the oracle can tell which of them are wrong.

    Interpreted first: no kernel has to be compiled for that, and a wrong lowering shows. At the same time two parts of
    the first cover are compiled, in case it is the code that is wrong.
    """
    if not whole.engine.oracle.names_outputs or whole.too_large_to_expose:
        return None
    compiled, interpreted = whole.ask(exposed=True), whole.ask(exposed=True, interpreted=True)

    def point(covers: Sequence[Subset]) -> bool:
        parts = [*in_parts(covers[0], 2), *covers]
        asked = [*interpreted.candidates(covers[:1]), *compiled.candidates(parts)]
        return whole.engine.first(NAME, asked) is not None

    return point


def _racer(whole: _Whole) -> Ask | None:
    """Which of disconnected subsets passes first, where the oracle can tell and several can be tried at once."""
    engine = whole.engine
    if engine.width < 2 or not engine.oracle.failing_is_slow:
        return None
    apart = whole.ask(apart=True)

    def race(subsets: Sequence[Subset]) -> int | None:
        engine.count(len(subsets))
        made = [apart.make(subset) for subset in subsets]
        return engine.oracle.first_passing([state for state in made if state is not None])

    return race


def _firsts(kinds: Sequence[str]) -> Subset:
    first: dict[str, int] = {}
    for number, kind in enumerate(kinds):
        first.setdefault(kind, number)
    return tuple(sorted(first.values()))


def _cover(kinds: Sequence[str], before: Sequence[Sequence[int]], reach: int) -> Subset:
    """The first element of each kind, with all it reads within `reach` steps; the kinds know their surroundings."""
    deep = list(kinds)
    for _ in range(reach):
        deep = [
            hashlib.sha1("|".join([deep[n], *(deep[s] for s in before[n])]).encode()).hexdigest()
            for n in range(len(deep))
        ]
    found: set[int] = set()
    edge = set(_firsts(deep))
    for _ in range(reach + 1):
        found |= edge
        edge = {source for number in edge for source in before[number]} - found
    return tuple(sorted(found))


def _kind(recording: Recording, node: torch.fx.Node) -> str:
    """What a node does, apart from its name: target, literals, and the form of what it reads."""

    def form(source: torch.fx.Node) -> object:
        value = recording.value(source.name)
        if isinstance(value, RecordedTensor):
            spec = value.spec
            return f"{spec.dtype}{list(spec.shape)}{list(spec.stride)}{spec.device}"
        return str(source.target) if source.op == "get_attr" else f"{type(value).__name__}"

    return f"{node.target}{torch.fx.map_arg(node.args, form)}{torch.fx.map_arg(dict(node.kwargs), form)}"
