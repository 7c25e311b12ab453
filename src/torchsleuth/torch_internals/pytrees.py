"""Specs of nested containers (`torch.utils._pytree.TreeSpec`), which graphs may hold as arguments.

Versions: `treespec_dumps` and `treespec_loads` write and read the same JSON in 2.11..2.15.
"""

from torch.utils import _pytree


def writable_treespec(value: object) -> str | None:
    """An expression that rebuilds a pytree spec, or None where it is not one or cannot be rebuilt."""
    if not isinstance(value, _pytree.TreeSpec):
        return None
    try:
        text = _pytree.treespec_dumps(value)
        if _pytree.treespec_loads(text) != value:
            return None
    except Exception:  # unregistered or unserialisable node types
        return None
    return f"torch.utils._pytree.treespec_loads({text!r})"
