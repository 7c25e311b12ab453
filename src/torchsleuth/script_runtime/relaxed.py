"""A graph that runs eagerly on inputs with other strides than it was traced with.

Inductor may give activations another memory layout; the backward graph, traced before, then holds views that
no longer are possible. Inductor reads them as reshapes, and so must whoever runs the graph without it.
The text of this file is pasted into repro scripts: standard library and public torch only.
"""

import copy

import torch


def with_reshapes(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy of `graph` in which every `aten.view` is an `aten.reshape`, nested graphs included.

    >>> with_reshapes(gm)(x)
    (tensor([0., 2.]),)
    """
    relaxed = copy.deepcopy(graph)
    for module in relaxed.modules():
        if isinstance(module, torch.fx.GraphModule):
            views = [n for n in module.graph.nodes if n.target is torch.ops.aten.view.default]
            for node in views:
                node.target = torch.ops.aten.reshape.default
            if views:
                module.recompile()
    return relaxed
