"""What a test can claim about torch.compile: no graph breaks, no recompilations, the numbers of eager.

Each is a context manager around the calls it is about, for pytest, unittest or a plain script.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch

from torchsleuth.script_runtime.compiling import with_reshapes
from torchsleuth.torch_core.compare.reference.cloning import clone_inputs
from torchsleuth.torch_core.compare.reference.rng import Draw, noting_draws
from torchsleuth.torch_core.compare.verdict.judge import judge
from torchsleuth.torch_core.compare.verdict.look import judge_gradients
from torchsleuth.torch_core.compare.verdict.verdict import INCONCLUSIVE, Verdict, inconclusive
from torchsleuth.torch_internals import hooks
from torchsleuth.torch_internals.compile_events import (
    compilations_since,
    counted_so_far,
    graph_breaks_since,
)
from torchsleuth.torch_internals.saved_code import keeps_state, runnable_copy

# The attribute of an AssertionError that is about what the compiler did, not about a failure of it.
REFUTED_BY = "torchsleuth_verb"
# Of many breaks or recompilations, those that a message names.
MOST_NAMED = 5


class CannotTell(UserWarning):
    """A graph could not be judged; the claim is neither shown nor refuted."""


@contextlib.contextmanager
def no_graph_breaks() -> Iterator[None]:
    """Fails where Dynamo breaks a graph in here, and where it captures nothing at all.

    >>> with no_graph_breaks():
    ...     torch.compile(lambda x: x.cos() + 7, backend="eager")(torch.zeros(2))
    tensor([8., 8.])
    """
    before = counted_so_far()
    yield
    breaks = graph_breaks_since(before)
    if breaks:
        raise _refuted(_listed(f"{len(breaks)} graph {_plural('break', breaks)}", breaks), "explain")
    if not compilations_since(before):
        raise AssertionError(
            "nothing was compiled in here, so nothing is known about graph breaks; compile a function of your own "
            "inside, or call torch._dynamo.reset() before"
        )


@contextlib.contextmanager
def no_recompilations() -> Iterator[None]:
    """Fails where a function that was compiled before is compiled again in here; a first compilation is none.

    >>> double = torch.compile(lambda x: x * 2, backend="eager")
    >>> with no_recompilations():
    ...     a, b = double(torch.ones(2)), double(torch.zeros(2))
    """
    before = counted_so_far()
    yield
    again = [each for each in compilations_since(before) if each.again is not None]
    if again:
        what = [f"{each.function} ({each.file}:{each.line}): {_first_line(each.again)}" for each in again]
        raise _refuted(_listed(f"{len(again)} {_plural('recompilation', again)}", what), "recompiles")


@contextlib.contextmanager
def compiled_equals_eager() -> Iterator[list[Verdict]]:
    """Fails where a graph that is compiled in here gives other numbers than eager, beyond rounding noise.

    The first call of each graph is judged as `judge` does, gradients included where it trains. A graph that cannot be
    judged is warned of (`CannotTell`). Whole calls, with what capture changes, are compared by
    `torchsleuth run --check-accuracy`.

    >>> with compiled_equals_eager() as verdicts:
    ...     y = torch.compile(lambda x: x.sin(), backend="eager")(torch.ones(3))
    >>> [verdict.kind for verdict in verdicts]
    ['WITHIN_NOISE']
    """
    found: list[Verdict] = []
    undo = hooks.hook_backend_calls(lambda call: _judged(call, found))
    try:
        with hooks.eager_random_numbers():
            yield found
    finally:
        undo()
    wrong = [str(verdict) for verdict in found if verdict.diverged]
    if wrong:
        raise AssertionError(_listed("the compiled result is wrong", wrong))
    if not found:
        raise AssertionError(
            "no graph was compiled and called in here, so there is nothing to compare; compile a function of your own "
            "inside, or call torch._dynamo.reset() before"
        )
    for verdict in found:
        if verdict.kind == INCONCLUSIVE:
            warnings.warn(f"not compared with eager: {verdict.sentence}", CannotTell, stacklevel=3)


def _judged(call: hooks.BackendCall, found: list[Verdict]) -> Callable[..., object]:
    """The compiled graph; its first call is judged on copies before the real one is made."""
    if keeps_state(call.graph):
        found.append(inconclusive("each call of this graph changes a buffer of its own, so no two are alike"))
        return call.as_without_us()
    eager = with_reshapes(runnable_copy(call.graph))  # the compiler takes the graph over and changes it
    compiled = call.as_without_us()
    pending = [True]

    def run(*args: object) -> object:
        if pending and pending.pop():
            found.append(_verdict(eager, clone_inputs(list(args)), lambda *given: compiled(*given)))
        return compiled(*args)

    return run


def _verdict(eager: torch.fx.GraphModule, args: list[object], compiled: Callable[..., object]) -> Verdict:
    first = judge(eager, args, compiled, notes_draws=True)
    trains = torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
    if first.diverged or not trains:
        return first
    drawn: list[Draw] = []

    def noting(*given: object) -> object:
        with noting_draws(drawn):
            return compiled(*given)

    return judge_gradients(eager, args, noting, draws=drawn)


def _refuted(message: str, verb: str) -> AssertionError:
    """What a test report says; `verb` shows more, and marks that nothing of the compiler has failed."""
    error = AssertionError(message)
    error.add_note(
        f"lines, reasons and cures: torchsleuth {verb} script.py, or torchsleuth {verb} -m pytest test.py"
    )
    vars(error)[REFUTED_BY] = verb
    return error


def _listed(what: str, lines: list[str]) -> str:
    named = list(dict.fromkeys(lines))
    more = [f"... and {len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else []
    return "\n  ".join([f"{what}:", *named[:MOST_NAMED], *more])


def _plural(word: str, things: Sequence[object]) -> str:
    return word if len(things) == 1 else f"{word}s"


def _first_line(text: str | None) -> str:
    return ((text or "").strip().splitlines() or ["no reason given"])[0]
