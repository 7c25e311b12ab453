"""The order of work on a program: statements first, then blocks, definitions, expressions; to a fixpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torchsleuth.search.minify.contract import Answers, Listener, Reducer, Reduction
from torchsleuth.search.minify.engine import Engine, combined
from torchsleuth.search.minify.python.classes import constant_attributes, unmake_classes
from torchsleuth.search.minify.python.expressions import (
    fewer_arguments,
    plainer_constants,
    plainer_tensors,
    smaller_expressions,
    smaller_sizes,
)
from torchsleuth.search.minify.python.functions import (
    drop_parameters,
    drop_trimmings,
    inline_functions,
    leave_out_callers,
)
from torchsleuth.search.minify.python.program import Program, as_written, parsed
from torchsleuth.search.minify.python.statements import (
    NAME,
    drop_names,
    empty_containers,
    reduce_statements,
    unwrap_blocks,
)

# What changes which functions and statements there are, in the order of their turns.
STRUCTURE: dict[str, Reducer[Program]] = {
    "callers": leave_out_callers,
    "blocks": unwrap_blocks,
    "functions": inline_functions,
    "parameters": drop_parameters,
    "attributes": constant_attributes,
    "classes": unmake_classes,
    "containers": empty_containers,
    "names": drop_names,
}
# Those of which most holds, tried all together; one by one only of what is left in the end.
TOGETHER: dict[str, Reducer[Program]] = {
    "trimmings": drop_trimmings,
    "tensors": plainer_tensors,
    "sizes": smaller_sizes,
}
# What is left in the statements that stay; a part for the whole first, which takes most along.
DETAILS: dict[str, Reducer[Program]] = {
    "expressions": smaller_expressions,
    "arguments": fewer_arguments,
    **TOGETHER,
    "constants": plainer_constants,
}


class DoesNotFail(Exception):
    """The program, printed anew from its syntax tree, does not fail as it did: nothing can be made of it."""


@dataclass(frozen=True)
class ReducedProgram(Reduction[Program]):
    """The smallest program found, and how it was found; `text` is written as the given one is where it can be."""

    text: str = ""


def reduce_program(
    text: str,
    oracle: Answers[Program],
    *,
    width: int = 1,
    budget_seconds: float | None = None,
    listener: Listener | None = None,
    keep: Callable[[Program], None] = lambda program: None,
) -> ReducedProgram:
    """The smallest program that the oracle still calls failing; what it keeps of the given one is written as there.

    `keep` is given each smaller program. Raises `SyntaxError` where the text is no program, and `DoesNotFail`.

    >>> reduce_program("a = 1\\nb = [a, 2]\\nc = 3", lambda programs: ["b" in p.text for p in programs]).text
    'b = 1\\n'
    """
    engine = Engine(
        oracle,
        parsed(text),
        width=width,
        budget_seconds=budget_seconds,
        listener=listener,
        keep=keep,
        doing="making the program smaller",
    )

    def work() -> None:
        if not engine.fails("as it is", "the program without its comments", engine.best):
            raise DoesNotFail
        _fixpoint(engine)

    found = engine.run(work)
    return ReducedProgram(**vars(found), text=as_written(found.state, text))


def _fixpoint(engine: Engine[Program]) -> None:
    """Details have their turn when the structure holds: what is about to go need not be made plainer first."""
    before = None
    while before is not engine.best:
        before = engine.best
        for name, reducer in TOGETHER.items():
            if engine.begins(name):
                edited = combined(reducer(engine.best), engine.best)
                if edited is not None and engine.fails(name, "all together", edited):
                    engine.accept(name, edited)
        structure = None
        while structure is not engine.best:
            structure = engine.best
            for name in ("callers", "blocks", "functions"):
                engine.settle(name, STRUCTURE[name], together=False)
            if engine.begins(NAME):
                reduce_statements(engine)
            for name, reducer in STRUCTURE.items():
                engine.settle(name, reducer, together=False)
        for name, reducer in DETAILS.items():
            engine.settle(name, reducer, together=name in TOGETHER)
