"""`%%torchsleuth` in IPython and Jupyter: the cell as a program of its own, under any verb.

The kernel itself is not watched: a cell that hangs or dies takes nothing with it. So the cell has to make what it
needs; names of other cells are not there.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from typing import Any


def load_ipython_extension(shell: Any) -> None:
    """Registers the magic: `load_ipython_extension(get_ipython())`."""
    shell.register_magic_function(torchsleuth, "line_cell", "torchsleuth")


def torchsleuth(line: str, cell: str | None = None) -> None:
    """`%torchsleuth show last`, or `%%torchsleuth explain` above a program; without a verb the program is run."""
    words = shlex.split(line)
    if cell is not None:
        words = [*(words or ["run"]), "-"]
    command = [sys.executable, "-m", "torchsleuth", *words]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, text=True, errors="replace", **pipes) as started:  # type: ignore[call-overload]
        try:
            started.stdin.write(cell or "")
            started.stdin.close()
            for said in started.stdout:
                sys.stdout.write(said)
        except KeyboardInterrupt:  # what is known so far is still said
            started.send_signal(signal.SIGINT)
            sys.stdout.write(started.stdout.read())
