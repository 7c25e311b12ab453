"""The process that looks at graphs for a program that cannot be forked: one that uses an accelerator, has ranks
beside it, or makes the call in another thread than its main one.

It is started once, while the program compiles, and sees the devices that the program sees. It is handed a graph as text
and copies of the values of one call, and tells what it found: what hangs, dies or fills the memory is this process.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import pickle
import signal
import threading
import time

import torch

from torchsleuth.child.compile import namespace_of
from torchsleuth.core.processes.tree import be_first_to_go, started_at
from torchsleuth.script_runtime.reader import read_graph
from torchsleuth.torch_core.compare.reference.memory import beside_program
from torchsleuth.torch_core.compare.verdict.look import (
    HEAD,
    NOT_SHARED,
    Differentiated,
    Handed,
    Look,
    looked_at,
    parameters_of,
)
from torchsleuth.torch_internals.tensors import CannotOpen, identity_of, taken

# Whoever asked ends this process in time; the kernel does where nobody is left who could.
LAST_SECONDS = 30


def main(arguments: list[str]) -> None:
    """`PROGRAM ORDERS ANSWERS VALUES`: the program's process and three descriptors."""
    program, orders, answers, values = map(int, arguments)
    _ends_with(program)
    be_first_to_go()
    faulthandler.enable()
    # What the operators of a graph after AOTAutograd are; what a verdict needs is loaded with this module.
    importlib.import_module("torch._inductor.compile_fx")
    if torch.cuda.is_available():
        torch.cuda.init()
    _tell(answers, Look())
    while order := os.read(orders, 64):
        signal.alarm(int(order) + LAST_SECONDS)
        _tell(answers, _look(values))
        signal.alarm(0)
        gc.collect()
    os._exit(0)


def _ends_with(program: int) -> None:
    """It is no child of the program's, which may wait for its own: so nobody tells it when that has ended."""
    began = started_at(program)

    def watch() -> None:
        while began and started_at(program) == began:
            time.sleep(0.5)
        os._exit(1)

    if os.path.isdir("/proc/self"):
        threading.Thread(target=watch, daemon=True).start()


def _tell(answers: int, look: Look) -> None:
    content = pickle.dumps(look)
    with open(answers, "wb", closefd=False) as file:
        file.write(HEAD.pack(len(content)) + content)


def _look(values: int) -> Look:
    try:
        with taken(values) as handed:
            return _looked(handed)
    except CannotOpen:
        return Look(why_not=NOT_SHARED)
    except Exception as error:
        said = (str(error).strip().splitlines() or [""])[0][:300]
        return Look(why_not=f"it does not run there: {type(error).__name__}: {said}")


def _looked(handed: Handed) -> Look:
    for device, name in handed.devices.items():
        if identity_of(torch.device(device)) != name:
            return Look(why_not=f"the process beside the program sees another device as {device}")
    graph = _graph(handed)
    if tuple(parameters_of(graph)) != handed.parameters and isinstance(handed.call, Differentiated):
        return Look(why_not="its parameters come in another order in a copy of it")
    handed.switches.set_in_process()
    with beside_program(handed.memory, handed.held), handed.switches.of_thread():
        return looked_at(graph, handed.call)


def _graph(handed: Handed) -> torch.fx.GraphModule:
    scope = {
        **namespace_of(handed.imports, handed.embedded),
        "constant": handed.constants.__getitem__,
    }
    return read_graph(handed.graph, "Repro", scope)
