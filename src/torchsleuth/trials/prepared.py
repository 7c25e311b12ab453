"""The inside of an interpreter that is started before its script is known, so that loading torch is not waited for.

It loads torch and its compiler, does what Inductor does once before its first graph, and compiles nothing. Then it
forks a process for each order that comes over a socket, a script or the server of the trials, and runs nothing
itself. So a script starts with a loaded torch, an empty kernel cache of its own and no compile behind it.
"""

from __future__ import annotations

import gc
import os
import runpy
import selectors
import signal
import socket
import sys
from collections.abc import Iterable
from typing import Any

from torchsleuth.processes.frames import BrokenFrame, Frames, frame
from torchsleuth.processes.tree import TOKEN, kill_group, mark_this_process
from torchsleuth.torch_internals.loading import load_compiler, prepare_compiler, prepare_kernels
from torchsleuth.torch_internals.vector_instructions import (
    forget_where_named,
    noted_answers,
    recall_vector_instructions,
)
from torchsleuth.trials.child import named_function


def main(arguments: list[str]) -> None:
    """Started by `workers.prestart` with the number of its socket."""
    control = socket.socket(fileno=int(arguments[0]))
    load_compiler()
    # Which vector instructions the C++ compiler knows is asked in six small processes, a second, for each first kernel.
    recall_vector_instructions(noted_answers())
    prepare_compiler()
    gc.collect()
    gc.freeze()
    _become(_serve(control))


def _serve(control: socket.socket) -> dict[str, Any]:
    """Forks a process for each order and tells how it ended; in such a process it returns the order.

    When the other end of the socket is gone, so is everything that was started here.
    """
    wake, wakes = os.pipe()
    for descriptor in (wake, wakes):
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    frames, running, handed = Frames(), dict[int, int](), list[int]()
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        control.sendall(frame({"ready": os.getpid()}))
        while True:
            for key, _ in selector.select():
                if key.fileobj is control:
                    for message in _heard(control, frames, running, handed):
                        pid = _obey(message, running)
                        if pid == 0:
                            signal.set_wakeup_fd(-1)
                            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                            for descriptor in (wake, wakes):
                                os.close(descriptor)
                            control.close()
                            return {**message, "descriptors": handed}
                        if "call" in message:  # the one kind of order that brings a descriptor
                            os.close(handed.pop(0))
                            prepare_kernels()  # while the trials run; scripts come after them
                else:
                    _drain(wake)
            _reap(control, running)


def _heard(control: socket.socket, frames: Frames, running: Iterable[int], handed: list[int]) -> list[Any]:
    """The messages that came; descriptors that came with them go to `handed`."""
    try:
        data, descriptors, _, _ = socket.recv_fds(control, 1 << 18, 1)
        handed += descriptors
        if data:
            return frames.feed(data)
    except (OSError, BrokenFrame):
        pass
    for pid in running:
        kill_group(pid)
    os._exit(0)


def _obey(message: dict[str, Any], running: dict[int, int]) -> int | None:
    if "kill" in message:
        for pid, number in running.items():
            if number == message["kill"]:
                kill_group(pid)
        return None
    pid = os.fork()
    if pid == 0:
        os.setsid()
    else:
        running[pid] = message["number"]
    return pid


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 512):
            pass
    except BlockingIOError:
        pass


def _reap(control: socket.socket, running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        kill_group(pid)  # what it started goes with it
        if pid in running:
            code = os.waitstatus_to_exitcode(status)
            control.sendall(frame({"done": running.pop(pid), "code": code}))


def _become(order: dict[str, Any]) -> None:
    """Runs a script as `python script` would, or the module that is named, in place of what was here."""
    for descriptor, name in ((1, order["stdout"]), (2, order["stderr"])):
        opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    silence = os.open(os.devnull, os.O_RDONLY)
    os.dup2(silence, 0)
    os.close(silence)
    for name, value in order["environment"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    if "call" in order:
        mark_this_process(os.environ.get(TOKEN, ""))
        named_function(order["call"])([f"--control={order['descriptors'][0]}", *order["arguments"]])
        return
    # Its arguments, its folder first on the path, and its name.
    sys.argv[:] = [order["script"], *order["arguments"]]
    sys.path[0] = os.path.dirname(os.path.abspath(order["script"]))
    with open(order["script"], encoding="utf-8") as file:
        forget_where_named(file.read())
    runpy.run_path(order["script"], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
