"""From a graph handed to Inductor's inner compiler to one handed to the whole of it.

The same calls under `torch.compile` are what a person would write; where they fail there, too, the rest of the search
goes on at that level, so that what it ends with can be written so.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchsleuth.search.minify.search.contract import Edit, State


def lift(state: State) -> Iterator[Edit]:
    """One edit for a graph after AOTAutograd: compile it as Dynamo would hand it over."""
    if state.settings.level == "aot":
        yield Edit("compile the whole way", _lifted)


def _lifted(state: State) -> State | None:
    if state.settings.level != "aot":
        return None
    plain = state.setting(level="dynamo", compile_kwargs={}, visible_outputs=None)
    return plain.having(static_names=None)
