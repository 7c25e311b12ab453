"""Torch's tables of decompositions: its own, and Inductor's, with what the program changed in it.

Versions: the tables and `fast_random_decomps` are those of 2.11 to 2.15.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_TABLE = "torch._inductor.decomposition"
_as_imported: dict[Any, Any] = {}
# Taken out by torch itself, where a setting says so.
_TORCHS_OWN = "quantized.embedding_bag_byte_unpack"


def decomposition_of(op: Any) -> Callable[..., Any] | None:
    """The function by which torch writes an operator in simpler ones, whoever compiles; None where it has none.

    >>> decomposition_of(torch.ops.aten.hardswish.default)(torch.ones(1))
    tensor([0.6667])
    """
    from torch._decomp import decomposition_table

    return decomposition_table.get(op)


def remember_table() -> None:
    """Keeps the table as torch made it, right after its import."""
    _as_imported.update(sys.modules[_TABLE].decompositions)


def changed_decompositions() -> tuple[dict[str, Callable[..., Any]], list[str]]:
    """The decompositions that the program put in, by operator (`aten.silu.default`), and the operators it took out."""
    if not _as_imported:
        return {}, []
    table = sys.modules[_TABLE].decompositions
    changed = {str(op): made for op, made in table.items() if _as_imported.get(op) is not made}
    put_in = {op: made for op, made in changed.items() if not _is_torchs(made)}
    taken_out = [str(op) for op in _as_imported if op not in table and not str(op).startswith(_TORCHS_OWN)]
    return put_in, taken_out


def _is_torchs(made: Any) -> bool:
    home = getattr(getattr(made, "func", made), "__module__", None) or ""
    return home.partition(".")[0] == "torch"


def table_source(names: Mapping[str, str], taken_out: Sequence[str]) -> str:
    """Statements that change the table so; `names` are those of the functions, by operator.

    >>> print(table_source({"aten.silu.default": "my_silu"}, []))
    import torch._inductor.decomposition as inductor_table
    inductor_table.decompositions[torch.ops.aten.silu.default] = my_silu
    inductor_table.fast_random_decomps.cache_clear()
    """
    lines = [f"inductor_table.decompositions[torch.ops.{op}] = {name}" for op, name in names.items()]
    lines += [f"inductor_table.decompositions.pop(torch.ops.{op}, None)" for op in taken_out]
    return "\n".join(
        (f"import {_TABLE} as inductor_table", *lines, "inductor_table.fast_random_decomps.cache_clear()")
    )
