"""A line of the user's program, as records of graphs keep it. Needs no torch: the front reads records, too."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class SourceLine:
    """One line of the user's program, and the dotted path of the module it ran in (`""` for a function).

    `call` is what the program called there (`conv2d`); of a backward node, `gradient`, the call it is the gradient of.
    """

    file: str
    line: int
    function: str = ""
    code: str = ""
    module: str = ""
    call: str = ""
    gradient: bool = False

    @property
    def place(self) -> str:
        """`model.py:84`: short enough to print, without the folders of the user's machine."""
        return f"{os.path.basename(self.file)}:{self.line}"
