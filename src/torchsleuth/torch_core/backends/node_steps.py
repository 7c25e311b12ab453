"""Runs a graph node by node and knows at any moment which node, and so which line of the user's program, is at work."""

from __future__ import annotations

from typing import Any

import torch

from torchsleuth.torch_core.graphs.provenance import source_line


class Steps(torch.fx.Interpreter):
    """An interpreter that remembers the node it is at: `Steps(gm).run(x)`."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        super().__init__(gm)
        # The interpreter would add lines to the message of whatever is raised, ours included.
        self.extra_traceback = False
        self.at: torch.fx.Node | None = None

    def run_node(self, n: torch.fx.Node) -> Any:
        self.at = n
        return super().run_node(n)

    @property
    def place(self) -> str:
        """`model.py:84` of the node at work, or `""`."""
        return place_of(self.at)


def place_of(node: torch.fx.Node | None) -> str:
    """`model.py:84` of a node, or `""` where its graph does not say."""
    line = source_line(node) if node is not None else None
    return line.place if line else ""
