"""`CompileProfiler`: a backend that changes nothing and tells how often functions were compiled again, and why.

>>> profiler = CompileProfiler()
>>> double = torch.compile(lambda x: x * 2, backend=profiler)
>>> double(torch.ones(2)).tolist(), double(torch.ones(3)).tolist()
([2.0, 2.0], [2.0, 2.0, 2.0])
>>> profiler.recompiles.count
1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchsleuth.front.observe.recompiles import Recompiles, recompile_lines, recompiles_of
from torchsleuth.listeners import EventsInMemory, listen
from torchsleuth.torch_internals.frames import FrameCompile
from torchsleuth.watched.observe.captures import note_frame, note_recompile


class CompileProfiler:
    """Runs captured graphs as they are; what is compiled with it is counted. May be used in a `with` block, or without.

    Compiled code of before the block is forgotten, so that what is counted is all there is.
    """

    def __init__(self) -> None:
        self.graphs = 0
        self.op_count = 0
        self.events = EventsInMemory()
        listen(self)

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs += 1
        self.op_count += sum(node.op.startswith("call_") for node in gm.graph.nodes)
        return gm.forward

    def __enter__(self) -> CompileProfiler:
        torch.compiler.reset()
        return self

    def __exit__(self, *_: object) -> None:
        torch.compiler.reset()

    @property
    def recompiles(self) -> Recompiles:
        """What was seen until now, as values."""
        return recompiles_of(self.events.kept)

    def report(self) -> str:
        """What was seen until now, for a person: per function each recompilation, its guards, limits and cures."""
        found = self.recompiles
        if not found.compiles:
            return "nothing was compiled with this profiler: torch.compile(fn, backend=profiler)"
        return "\n".join([f"{self.graphs} graphs, {self.op_count} operations", *recompile_lines(found)])

    def on_frame(self, seen: FrameCompile) -> Any:
        """A frame is compiled with this backend."""
        noted = replace(seen, compile=lambda: note_recompile(seen, self.events, None))
        return note_frame(noted, self.events, None)

    def on_break(self, look: Callable[[], Any]) -> None:
        """Graph breaks are `ExplainWithBackend`'s to tell."""
