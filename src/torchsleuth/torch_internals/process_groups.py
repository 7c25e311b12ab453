"""Groups of processes that a graph communicates in, for a script of one process.

Versions: `_resolve_process_group` and the fake backend are there from 2.11 on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

# Operators that need the process groups of the program.
COLLECTIVES = frozenset(
    ["_c10d_functional", "c10d_functional", "c10d", "_c10d_functional_autograd", "symm_mem"]
)


def groups_of(graph: torch.fx.GraphModule) -> dict[str, tuple[int, ...]] | None:
    """The ranks of each group that the graph names, this process's own first; None where it does not communicate.

    Raises a LookupError where a group is not known here.
    """
    nodes = [
        node
        for module in graph.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if node.op == "call_function"
        and getattr(node.target, "namespace", _space(node.target)) in COLLECTIVES
    ]
    if not nodes:
        return None
    words = {word for node in nodes for word in (*node.args, *node.kwargs.values()) if isinstance(word, str)}
    found = {word: ranks for word in sorted(words) if (ranks := _ranks(word)) is not None}
    if not found and any(
        _space(node.target) != "symm_mem" for node in nodes if "wait_tensor" not in str(node.target)
    ):
        raise LookupError("the groups that it communicates in are not known")
    return found


def _space(target: Any) -> str:
    return str(getattr(target, "_qualified_op_name", "")).partition("::")[0]


def _ranks(name: str) -> tuple[int, ...] | None:
    from torch.distributed import get_process_group_ranks
    from torch.distributed.distributed_c10d import _resolve_process_group

    try:
        return tuple(get_process_group_ranks(_resolve_process_group(name)))
    except (RuntimeError, ValueError, LookupError):
        return None


def fake_groups_source(groups: Mapping[str, tuple[int, ...]]) -> str:
    """Statements after which one process can run a graph with collectives: the other ranks are not there.

    >>> print(fake_groups_source({"0": (0, 1)}))
    import torch.distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    """
    world, rank = 1, 0
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        world, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    world = max([world, *(1 + max(ranks) for ranks in groups.values())])
    lines = [
        "import torch.distributed",
        "from torch.testing._internal.distributed.fake_pg import FakeStore",
        "if not torch.distributed.is_initialized():",
        f'    torch.distributed.init_process_group("fake", store=FakeStore(), rank={rank}, world_size={world})',
    ]
    others = {name: list(ranks) for name, ranks in groups.items() if name != "0"}
    if others:
        # torch names a new group by a number that goes up; the graph's names may be among those.
        lines.append("    torch.distributed.distributed_c10d._world.group_count = 10_000")
    for name, ranks in others.items():
        made = f"torch.distributed.new_group({ranks})"
        lines.append(f"    torch._C._distributed_c10d._register_process_group({name!r}, {made})")
    return "\n".join(lines)
