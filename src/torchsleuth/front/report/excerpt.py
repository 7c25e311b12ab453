"""What of a written script a person wants to see at once: the failing function and its inputs, without what tells the
outcome."""

from __future__ import annotations

import textwrap

_BEFORE, _AFTER, _END = "EXPECTED = ", 'print("torchsleuth: ', "except "


def excerpt(script: str) -> list[str]:
    """The telling lines of a script that torchsleuth wrote; none of any other.

    >>> excerpt("EXPECTED = {}\\nx = 1\\nprint(\\"torchsleuth: compiling\\")\\ntry:\\n    f(x)\\nexcept Exception:")
    ['x = 1', 'f(x)']
    """
    lines = script.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith(_BEFORE)), None)
    after = next((i for i, line in enumerate(lines) if line.startswith(_AFTER)), None)
    if first is None or after is None or after < first:
        return []
    end = next((i for i, line in enumerate(lines) if i > after and line.startswith(_END)), len(lines))
    calls = textwrap.dedent("\n".join(line for line in lines[after + 1 : end] if line != "try:")).splitlines()
    found = [line.rstrip() for line in (*lines[first + 1 : after], *calls)]
    return [line for line in found if line]
