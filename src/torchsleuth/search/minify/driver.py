"""The order of work: nodes first, then everything else, cheapest first, to a fixpoint and within a budget.

Before any reducer gets its turn, all of them are applied at once: most failures need none of what surrounds them,
and then one question replaces dozens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

import torch

from torchsleuth.search.minify.contract import Answers, Listener, OutOfBudget, Reduction, State
from torchsleuth.search.minify.engine import Engine, combined, lowest
from torchsleuth.search.minify.reducers import DETAILS, STRUCTURE
from torchsleuth.search.minify.reducers.nodes import (
    cut_at_first_wrong,
    first_half,
    reduce_nodes,
    without_operators_of,
)
from torchsleuth.search.minify.reducers.plainer import compile_the_whole_way
from torchsleuth.search.minify.states import real_inputs, state_of
from torchsleuth.search.minify.subsets import NothingFails

# Of fewer calls a compile takes no longer than asking whether less would do.
WORTH_A_SHORTCUT = 12
# The rest is for asking whether what it found holds.
SHARE_FOR_A_SHORTCUT = 0.6
# Each costs a search of its own; a graph that is wrong for more reasons keeps the first find.
MOST_FINDS = 3


def search(
    state: State,
    oracle: Answers,
    *,
    seeds: Sequence[str] = (),
    width: int = 1,
    budget_seconds: float | None = None,
    listener: Listener | None = None,
    keep: Callable[[State], None] = lambda state: None,
    calls_only: bool = False,
) -> Reduction[State]:
    """The smallest state that the oracle still calls failing, found from one that fails.

    With `calls_only` the search ends when no call can be left out; shapes, values and settings stay as they are.
    `keep` is given each smaller state before the search goes on.

    >>> search(state, lambda states: ["relu" in s.graph.code for s in states]).calls
    1
    """
    engine = Engine(oracle, state, width=width, budget_seconds=budget_seconds, listener=listener, keep=keep)

    def work() -> None:
        _quickly(engine, seeds, calls_only)
        _fewest_calls(engine, seeds)
        _keep_to_what_was_seen(engine, state, seeds, calls_only)
        if not calls_only:
            _settled(engine)

    return engine.run(work)


def _quickly(engine: Engine[State], seeds: Sequence[str], calls_only: bool) -> None:
    """The smallest of what an oracle that answers sooner calls failing and the search's own oracle does as well.

    Each step of the quick search is kept: where the last does not hold, an earlier one may. What fails by a short
    clock, and half of which takes next to nothing, grows too fast: a long clock would show no more.
    """
    state = engine.best
    if state.size[0] >= WORTH_A_SHORTCUT and engine.begins("nodes"):
        state = cut_at_first_wrong(engine, state, seeds)
    quicker = engine.oracle.quicker(state) if state.size[0] >= WORTH_A_SHORTCUT else None
    if quicker is None:
        return
    shortcut = engine.aside(quicker, state, SHARE_FOR_A_SHORTCUT)
    if engine.oracle.failing_is_slow:
        with contextlib.suppress(OutOfBudget, NothingFails):
            _fewest_nodes(shortcut, seeds, coarse=True)
        half = first_half(shortcut.best)
        if half is not None and engine.oracle.settles_for(quicker, half):
            engine.known = dict(shortcut.known)
            engine.accept("nodes", shortcut.best)
            return
        if not engine.fails("nodes", "found quickly", shortcut.best):
            return
        engine.accept("nodes", shortcut.best)
    with contextlib.suppress(OutOfBudget, NothingFails):
        _fewest_calls(shortcut, seeds)
        if not calls_only:
            _settled(shortcut)
    held = _smallest_held(engine, shortcut.accepted[::-1])
    if held is not None:
        engine.accept("nodes", held)
        # What ends within a short clock ends within a long one; what is right without code is taken for right.
        engine.known = {key: False for key, failed in shortcut.known.items() if not failed} | engine.known


def _smallest_held(engine: Engine[State], states: Sequence[State]) -> State | None:
    """The first of ever larger states that fails, where those after it do, too; the first of all is likely the one."""

    def ask(places: Sequence[int]) -> tuple[int, State] | None:
        return engine.first(
            "nodes", [("found quickly", partial(states.__getitem__, place)) for place in places]
        )

    if not states:
        return None
    found = ask([0])
    return found[1] if found is not None else lowest(ask, engine.width, range(1, len(states)))[1]


def _fewest_nodes(engine: Engine[State], seeds: Sequence[str], coarse: bool = False) -> None:
    if engine.begins("nodes"):
        reduce_nodes(engine, engine.best, seeds, coarse)


def _fewest_calls(engine: Engine[State], seeds: Sequence[str], again: bool = False) -> None:
    """Fewer nodes, then fewer calls in other ways; where those changed something, nodes again."""
    if not again:
        engine.settle("derivatives", STRUCTURE["derivatives"])
    while True:
        if not again or engine.best.size[0] > 1:
            _fewest_nodes(engine, () if again else seeds)
        again = True
        searched = engine.best
        for name, reducer in STRUCTURE.items():
            engine.settle(name, reducer)
        if engine.best is searched:
            return


def _keep_to_what_was_seen(
    engine: Engine[State], state: State, seeds: Sequence[str], calls_only: bool
) -> None:
    """Calls without which the state is as wrong as before are not its failure, though they are wrong by themselves.

    Where it still fails with all calls of these operators left to eager, what is left fails for another reason, which
    is looked for in the same way. Kept is the first find that is needed: with only the others left to eager it fails.
    """
    if not engine.oracle.names_outputs:
        return
    finds = [engine.best]

    def fails_without(some: Sequence[State]) -> State | None:
        rest = without_operators_of(engine, state, some)
        if rest is None:
            return None
        sure = engine.aside(engine.oracle.in_a_share_of_the_time(), rest)
        sure.known = {**engine.known}
        return rest if sure.fails("nodes", "without what was found", rest) else None

    while (rest := fails_without(finds)) is not None and len(finds) < MOST_FINDS:
        other = engine.aside(engine.oracle, rest)
        other.known = {**engine.known}
        _quickly(other, seeds, calls_only)
        _fewest_calls(other, seeds)
        finds.append(other.best)
    for find in finds if len(finds) > 1 else ():
        if fails_without([other for other in finds if other is not find]) is not None:
            engine.turn_to("nodes", find)
            return


def _settled(engine: Engine[State]) -> None:
    """Everything else at its plainest, and fewer calls again, until nothing changes any more."""
    while True:
        before = engine.best
        _plainer(engine)
        if engine.best is before:
            return
        _fewest_calls(engine, (), again=True)


def _plainer(engine: Engine[State]) -> None:
    """Everything but the calls at its plainest: in one step, then what that left by itself."""
    if engine.begins("at once"):
        _all_at_once(engine)
    for name, reducer in DETAILS.items():
        engine.settle(name, reducer)


def _all_at_once(engine: Engine[State]) -> None:
    """Every detail at its plainest in one step, at the level at which a script is written where that fails, too."""
    whole_way = combined(compile_the_whole_way(engine.best), engine.best)
    if whole_way is not None:
        steps = [("everything at once", _plainest(whole_way)), ("only the level", whole_way)]
        found = engine.first("at once", [(what, partial(lambda held: held, state)) for what, state in steps])
        if found is not None:
            engine.accept("at once", found[1])
            return
    state = _plainest(engine.best)
    if state.size < engine.best.size and engine.fails("at once", "everything at once", state):
        engine.accept("at once", state)


def _plainest(state: State) -> State:
    for reducer in DETAILS.values():
        while (plainer := combined(reducer(state), state)) is not None:
            state = plainer
    return state


def minify(
    gm: torch.fx.GraphModule,
    inputs: Sequence[object],
    fails: Callable[[torch.fx.GraphModule, list[object]], bool],
    *,
    budget_seconds: float | None = None,
    listener: Listener | None = None,
) -> Reduction[State]:
    """Reduces a graph and its inputs as long as `fails(graph, inputs)` says yes.

    >>> minify(gm, [x], lambda gm, inputs: any(n.target is torch.relu for n in gm.graph.nodes)).calls
    1
    """

    def oracle(states: Sequence[State]) -> list[bool]:
        return [bool(fails(s.graph, real_inputs(s))) for s in states]

    state = state_of(gm, inputs)
    if not oracle([state])[0]:
        raise ValueError("the graph does not fail on these inputs, so there is nothing to reduce")
    return search(state, oracle, budget_seconds=budget_seconds, listener=listener)
