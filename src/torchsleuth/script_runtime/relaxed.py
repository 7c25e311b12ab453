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
    held = [
        value
        for module in graph.modules()
        for value in (*vars(module).values(), *module.parameters(False), *module.buffers(False))
        if isinstance(value, torch.Tensor)
    ]
    # Weights that were packed for a kernel have no memory that Python could copy, and nobody writes to them.
    relaxed = copy.deepcopy(graph, {id(value): value for value in held if value.is_mkldnn})
    for module in relaxed.modules():
        if isinstance(module, torch.fx.GraphModule):
            views = [n for n in module.graph.nodes if n.target is torch.ops.aten.view.default]
            for node in views:
                node.target = torch.ops.aten.reshape.default
            if views:
                module.recompile()
    return relaxed
