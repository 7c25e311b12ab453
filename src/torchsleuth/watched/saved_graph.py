"""Saved code that is loaded: with the graph it was compiled from, where that was done here, or a record without one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torchsleuth.core.cases.record import AmbientState, CompileSettings, GraphRecord
from torchsleuth.script_runtime.hiding import hide_in_words
from torchsleuth.torch_internals.configuration import global_state, versions
from torchsleuth.torch_internals.saved_code import SavedCode
from torchsleuth.watched.flight import Flight
from torchsleuth.watched.graph_record import RecordedGraph
from torchsleuth.watched.guard import GuardedGraph, guard_boxed
from torchsleuth.watched.startup import started_in

if TYPE_CHECKING:
    from torchsleuth.watched.watch import Watch


def guarded(watch: Watch, flight: Flight, code: SavedCode) -> Any:
    """What is loaded, with a guard around it: a crash, a hang or an error in there becomes a case, and so does a wrong
    result where the graph is known."""
    loaded = code.load()
    with watch.our_own_work():
        known = next((watch.saved[name] for name in code.names if name in watch.saved), None)
        graph = known or GuardedGraph(watch, flight, _record_without_graph(flight, code), None)
        return code.around(loaded, lambda run: guard_boxed(run, graph))
    return loaded


def _record_without_graph(flight: Flight, code: SavedCode) -> RecordedGraph:
    number, folder = flight.new_graph()
    why = f"the {code.kind} was compiled by another process, and does not hold the graph it was compiled from"
    (folder / "graph.py").write_text(f"# {why}\n", encoding="utf-8")
    settings = CompileSettings(
        "aot", "inductor", "backward" if code.backward else "forward", state=AmbientState(**global_state())
    )
    record = GraphRecord(
        settings,
        number=number,
        versions=versions(),
        hash="-".join(sorted(code.names)),
        no_repro=why,
        program={"command": hide_in_words(sys.orig_argv), "cwd": started_in},
    )
    recorded = RecordedGraph(folder, record)
    recorded.update()
    return recorded
