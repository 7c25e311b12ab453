"""The inside of an interpreter that is started before anyone knows what for, so that loading torch is not waited for.

It loads torch and its compiler, does what Inductor does once before its first graph, and compiles nothing. Then it
is a fork server: each order becomes a process with a loaded torch and no compile behind it - a script, the search
host, the server of the trials.
"""

from __future__ import annotations

import functools
import gc
import os
import runpy
import socket
import sys
from collections.abc import Sequence

from torchsleuth.child.child import named_function
from torchsleuth.child.server import Server
from torchsleuth.core.processes.kernel_caches import drop_unfinished_headers
from torchsleuth.core.processes.tree import TOKEN, adopt_orphans, mark_this_process
from torchsleuth.core.protocol.frames import Become
from torchsleuth.torch_internals.kernel_builds import (
    forget_where_named,
    noted_answers,
    recall_vector_instructions,
)
from torchsleuth.torch_internals.loading import (
    heed_compile_disable,
    load_compiler,
    prepare_compiler,
    prepare_kernels,
)


def main(arguments: list[str]) -> None:
    """Started by `processes.prepared` with the number of its socket."""
    control = socket.socket(fileno=int(arguments[0]))
    adopt_orphans()
    drop_unfinished_headers()
    load_compiler()
    # Which vector instructions the C++ compiler knows is asked in six small processes, a second, for each first kernel.
    recall_vector_instructions(noted_answers())
    prepare_compiler()
    gc.collect()
    gc.freeze()
    # What only kernels need is prepared while the first forks work.
    server = Server(control, after_fork=functools.cache(prepare_kernels))
    _become(*server.loop())


def _become(order: Become, descriptors: Sequence[int]) -> None:
    """Runs a script as `python script` would, or calls the function that is named, in place of what was here."""
    for descriptor, name in ((1, order.stdout), (2, order.stderr)):
        opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    silence = os.open(os.devnull, os.O_RDONLY)
    os.dup2(silence, 0)
    os.close(silence)
    for name, value in order.environment.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    if order.call:
        mark_this_process(os.environ.get(TOKEN, ""))
        numbers = [f"--control={number}" for number in descriptors]
        named_function(order.call)([*numbers, *order.arguments])
        return
    heed_compile_disable()
    # Its arguments, its folder first on the path, and its name.
    sys.argv[:] = [order.script, *order.arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(order.script)))
    with open(order.script, encoding="utf-8") as file:
        forget_where_named(file.read())
    runpy.run_path(order.script, run_name="__main__")
