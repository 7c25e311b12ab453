"""Memory that a graph asks for and nobody writes: what is in it is anybody's guess, in eager as well."""

from __future__ import annotations

from collections.abc import Collection

from torch.fx import GraphModule, Node

from torchsleuth.compare.reference.opkinds import plain_name
from torchsleuth.torch_internals.schemas import written_arguments

_MAKES = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}


def from_unwritten(graph: GraphModule, aliasing: Collection[str]) -> set[str]:
    """The nodes whose values come from such memory; `aliasing` are those that share memory with their first input.

    Memory that is written in part counts as written.

    >>> graph = torch.fx.symbolic_trace(lambda x: (x.new_empty(2), x + 1))
    >>> from_unwritten(graph, ())
    {'new_empty'}
    """
    base: dict[str, str] = {}
    written: set[str] = set()
    for node in graph.graph.nodes:
        shares = node.name in aliasing and bool(node.all_input_nodes)
        base[node.name] = base[node.all_input_nodes[0].name] if shares else node.name
        written |= {base[each.name] for each in written_arguments(node)}
    found: set[str] = set()
    for node in graph.graph.nodes:
        name = plain_name(node)
        if name in _MAKES:
            comes_from_it = node.name not in written and _has_elements(node)
        else:
            takes_the_form = name.endswith("_like") or name.startswith("new_")
            comes_from_it = not takes_the_form and any(n.name in found for n in node.all_input_nodes)
        if comes_from_it:
            found.add(node.name)
    return found


def _has_elements(node: Node) -> bool:
    known = node.meta.get("val", node.meta.get("example_value"))
    if known is not None:
        return known.numel() != 0
    return 0 not in node.args
