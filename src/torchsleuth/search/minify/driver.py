"""The order of work: nodes first, then everything else, cheapest first, to a fixpoint and within a budget.

Before any reducer gets its turn, all of them are applied at once: most failures need none of what surrounds them,
and then one question replaces dozens.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from torchsleuth.search.minify.contract import (
    Answers,
    Listener,
    Oracle,
    OutOfBudget,
    Reducer,
    Reduction,
    State,
    size_of,
)
from torchsleuth.search.minify.engine import Engine, combined, lowest, settle
from torchsleuth.search.minify.reducers.calls import (
    bypass,
    drop_outputs,
    inline_nested,
    merge_inputs,
    plainer_arguments,
    plainer_calls,
)
from torchsleuth.search.minify.reducers.gradients import plain_gradients
from torchsleuth.search.minify.reducers.nodes import (
    cut_at_first_wrong,
    grown,
    reduce_nodes,
    without_operators_of,
)
from torchsleuth.search.minify.reducers.settings import default_settings, for_inference, lift
from torchsleuth.search.minify.reducers.sizes import fewer_dimensions, smaller_sizes
from torchsleuth.search.minify.reducers.tensors import (
    contiguous,
    on_the_cpu,
    plain_dtypes,
    plainer_values,
    static_sizes,
    without_gradients,
)
from torchsleuth.search.minify.states import real_inputs, state_of
from torchsleuth.search.minify.subsets import NothingFails
from torchsleuth.torch_core.graphs.cut import calls_of

# Of fewer calls a compile takes no longer than asking whether less would do.
WORTH_A_SHORTCUT = 12
# The rest is for asking whether what it found holds.
SHARE_FOR_A_SHORTCUT = 0.6
# Each costs a search of its own; a graph that is wrong for more reasons keeps the first find.
MOST_FINDS = 3
# What changes the graph's calls, and so gives the search over nodes something new.
STRUCTURE: dict[str, Reducer] = {
    "nested": inline_nested,
    "derivatives": plain_gradients,
    "bypass": bypass,
    "calls": plainer_calls,
}
# The rest, those first that make every later trial cheaper.
DETAILS: dict[str, Reducer] = {
    "device": on_the_cpu,
    "outputs": drop_outputs,
    "settings": default_settings,
    "inference": for_inference,
    "gradients": without_gradients,
    "static": static_sizes,
    "inputs": merge_inputs,
    "values": plainer_values,
    "shapes": smaller_sizes,
    "dimensions": fewer_dimensions,
    "strides": contiguous,
    "dtypes": plain_dtypes,
    "arguments": plainer_arguments,
}


def search(
    state: State,
    oracle: Answers,
    *,
    seeds: Sequence[str] = (),
    width: int = 1,
    budget_seconds: float | None = None,
    most_queries: int | None = None,
    listener: Listener | None = None,
    calls_only: bool = False,
) -> Reduction:
    """The smallest state that the oracle still calls failing, found from one that fails.

    With `calls_only` the search ends when no call can be left out; shapes, values and settings stay as they are.

    >>> search(state, lambda states: ["relu" in s.graph.code for s in states]).calls
    1
    """
    started = time.monotonic()
    deadline = None if budget_seconds is None else started + budget_seconds
    engine = Engine(
        oracle, state, width=width, deadline=deadline, most_queries=most_queries, listener=listener
    )
    engine.listener.started(state)
    complete = True
    try:
        if not _quickly(engine, seeds, calls_only):
            _fewest_calls(engine, seeds)
            _keep_to_what_was_seen(engine, state, seeds, calls_only)
            if not calls_only:
                _settled(engine)
        elif not calls_only:
            _plainer(engine)
    except (OutOfBudget, KeyboardInterrupt):
        complete = False
    return Reduction(
        engine.best,
        calls_of(engine.best.graph),
        engine.queries,
        round(time.monotonic() - started, 3),
        complete,
        engine.statistics(),
    )


def _quickly(engine: Engine, seeds: Sequence[str], calls_only: bool) -> bool:
    """The smallest of what an oracle that answers sooner calls failing and the search's own oracle does as well.

    Each step of the quick search is kept: where the last does not hold, an earlier one may. True where it has as few
    calls as can be found in any time: those that fail by a short clock, and what they need for a long one.
    """
    state = engine.best
    if calls_of(state.graph) >= WORTH_A_SHORTCUT and engine.begins("nodes"):
        state = cut_at_first_wrong(engine, state, seeds)
    quicker = engine.oracle.quicker(state) if calls_of(state.graph) >= WORTH_A_SHORTCUT else None
    if quicker is None:
        return False
    now = time.monotonic()
    deadline = None if engine.deadline is None else now + SHARE_FOR_A_SHORTCUT * (engine.deadline - now)
    shortcut = Engine(
        quicker, state, width=engine.width, deadline=deadline, listener=_WhatIsAsked(engine.listener)
    )
    if engine.oracle.failing_is_slow:
        with contextlib.suppress(OutOfBudget, NothingFails):
            _fewest_nodes(shortcut, seeds, coarse=True)
        if not engine.fails("nodes", "found quickly", shortcut.best):
            engine.queries += shortcut.queries
            return grown(engine, state, shortcut.best) is not None
        engine.accept("nodes", shortcut.best)
    with contextlib.suppress(OutOfBudget, NothingFails):
        if calls_only:
            _fewest_calls(shortcut, seeds)
        else:
            _fixpoint(shortcut, seeds)
    engine.queries += shortcut.queries
    held = smallest_held(engine, shortcut.accepted[::-1])
    if held is not None:
        engine.accept("nodes", held)
        # What ends within a short clock ends within a long one; what is right without code is taken for right.
        passed = {key: False for key, failed in shortcut.known.items() if not failed}
        engine.known = passed | engine.known
    return False


class _WhatIsAsked(Listener):
    """Passes on what is asked; what was found is told when it has held."""

    def __init__(self, listener: Listener) -> None:
        self.asked = listener.asked  # type: ignore[method-assign]
        self.begins = listener.begins  # type: ignore[method-assign]


def smallest_held(engine: Engine, states: Sequence[State]) -> State | None:
    """The first of ever larger states that fails, where those after it do, too; the first of all is likely the one."""

    def ask(places: Sequence[int]) -> tuple[int, State] | None:
        return engine.first("nodes", [("found quickly", partial(_same, states[place])) for place in places])

    if not states:
        return None
    found = ask([0])
    if found is not None:
        return found[1]
    return lowest(ask, engine.width, range(1, len(states)))[1]


def _fewest_nodes(engine: Engine, seeds: Sequence[str], coarse: bool = False) -> None:
    if engine.begins("nodes"):
        reduce_nodes(engine, engine.best, seeds, coarse)


def _fewest_calls(engine: Engine, seeds: Sequence[str], again: bool = False) -> None:
    """Fewer nodes, then fewer calls in other ways; where those changed something, nodes again."""
    if not again and engine.begins("derivatives"):
        settle(engine, "derivatives", plain_gradients, engine.best)
    while True:
        if not again or calls_of(engine.best.graph) > 1:
            _fewest_nodes(engine, () if again else seeds)
        again = True
        searched = engine.best
        for name, reducer in STRUCTURE.items():
            if engine.begins(name):
                settle(engine, name, reducer, engine.best)
        if engine.best is searched:
            return


def _keep_to_what_was_seen(engine: Engine, state: State, seeds: Sequence[str], calls_only: bool) -> None:
    """Calls without which the state is as wrong as before are not its failure, though they are wrong by themselves.

    Where it still fails with all calls of these operators left to eager, what is left fails for another reason, which
    is looked for in the same way. Kept is the first find that is needed: with only the others left to eager it fails.
    """
    if not engine.oracle.names_outputs:
        return
    finds = [engine.best]

    def asker(oracle: Oracle, start: State) -> Engine:
        most = None if engine.most_queries is None else engine.most_queries - engine.queries
        listener = _WhatIsAsked(engine.listener)
        other = Engine(
            oracle, start, width=engine.width, deadline=engine.deadline, most_queries=most, listener=listener
        )
        other.known = {**engine.known}
        return other

    def fails_without(some: Sequence[State]) -> State | None:
        rest = without_operators_of(engine, state, some)
        if rest is None:
            return None
        sure = asker(engine.oracle.in_a_share_of_the_time(), rest)
        failed = sure.fails("nodes", "without what was found", rest)
        engine.queries += sure.queries
        return rest if failed else None

    while (rest := fails_without(finds)) is not None and len(finds) < MOST_FINDS:
        other = asker(engine.oracle, rest)
        try:
            if not _quickly(other, seeds, calls_only):
                _fewest_calls(other, seeds)
        finally:
            engine.queries += other.queries
        finds.append(other.best)
    for find in finds if len(finds) > 1 else ():
        if fails_without([other for other in finds if other is not find]) is not None:
            engine.turn_to("nodes", find)
            return


def _fixpoint(engine: Engine, seeds: Sequence[str]) -> None:
    _fewest_calls(engine, seeds)
    _settled(engine)


def _settled(engine: Engine) -> None:
    """Everything else at its plainest, and fewer calls again, until nothing changes any more."""
    while True:
        before = size_of(engine.best)
        _plainer(engine)
        if size_of(engine.best) == before:
            return
        _fewest_calls(engine, (), again=True)


def _plainer(engine: Engine) -> None:
    """Everything but the calls at its plainest: in one step, then what that left by itself."""
    if engine.begins("leap"):
        _leap(engine)
    for name, reducer in DETAILS.items():
        if engine.begins(name):
            settle(engine, name, reducer, engine.best)


def _leap(engine: Engine) -> None:
    """Every detail at its plainest in one step, at the level at which a script is written where that fails, too."""
    lifted = combined(lift(engine.best), engine.best)
    if lifted is not None:
        steps = [("everything at once", _plainest(lifted)), ("only the level", lifted)]
        found = engine.first("leap", [(what, partial(_same, state)) for what, state in steps])
        if found is not None:
            engine.accept("leap", found[1])
            return
    state = _plainest(engine.best)
    if size_of(state) < size_of(engine.best) and engine.fails("leap", "everything at once", state):
        engine.accept("leap", state)


def _same(state: State) -> State:
    return state


def _plainest(state: State) -> State:
    for reducer in DETAILS.values():
        while (plainer := combined(reducer(state), state)) is not None:
            state = plainer
    return state


def minify(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    fails: Callable[[torch.fx.GraphModule, list[Any]], bool],
    *,
    budget_seconds: float | None = None,
    listener: Listener | None = None,
) -> Reduction:
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
