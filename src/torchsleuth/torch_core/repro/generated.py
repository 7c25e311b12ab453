"""The line of Inductor's generated code that a failure stood at, with what the code says of itself around it.

A kernel that dies or hangs raises nothing, but the stack names the file and line of its call, and the wrapper that
Inductor writes names operators there: in a comment before the call, in the kernel's name, in the checks after it. The
file is in a cache that may be gone tomorrow, so its lines go into the case.
"""

from __future__ import annotations

import re
from pathlib import Path

# Names of generated files are a `c` and 51 digits of base 32.
_FRAME = re.compile(r'File "([^"]*[/\\]c[a-z2-7]{51}\.py)", line (\d+),? in ')
# What follows a call and belongs to it: its result under another name, and the checks of its form.
_BELONGS = re.compile(r"\s*(?:buf\d+ = buf\d+$|assert_)")
TITLE = "Generated code:"


def generated_lines(traceback: str) -> str:
    """The generated lines that a traceback or a dump of stacks stood at; empty where there are none to be read.

    For `File "/tmp/x/cab...z.py", line 181 in call` the title and `buf5 = torch.ops.aten.sort.default(buf4)`.
    """
    place = _place(traceback)
    if place is None:
        return ""
    path, number = place
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    if not 0 < number <= len(lines):
        return ""
    first = number - 1
    while first and lines[first - 1].lstrip().startswith("# Topologically Sorted Source Nodes"):
        first -= 1
    last = number
    while last < len(lines) and _BELONGS.match(lines[last]):
        last += 1
    return "\n".join([TITLE, *lines[first:last]])


def _place(traceback: str) -> tuple[Path, int] | None:
    """The innermost generated frame: the first of a dump, which begins with it, and the last of a traceback."""
    dumped = traceback.rpartition("Current thread ")[2] if "Current thread " in traceback else None
    found = _FRAME.findall(traceback if dumped is None else dumped)
    if not found:
        return None
    path, line = found[-1 if dumped is None else 0]
    return Path(path), int(line)
