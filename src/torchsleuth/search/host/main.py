"""The inside of the search host: hears one order at a time from the front, does that step, says what came of it.

It decides what to ask and reads answers; whatever could end a process - the graph's kernels, the user's code, the
compiler - runs in trials. It says what it is about to do before it does it, so that its own end has a place.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.processes.prepared import PreparedInterpreter
from torchsleuth.core.processes.starting import without_devices
from torchsleuth.core.protocol.frames import Frames, frame
from torchsleuth.core.protocol.steps import TO_HOST, Begins, Done, HostStarted, Order, Refused, Says
from torchsleuth.search.workers.cluster import open_workers


class Front:
    """Someone to tell things to, who may have said what to leave out."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._frames: Frames[Order] = Frames(*TO_HOST)
        self.leave_out: frozenset[str] = frozenset()

    def orders(self) -> Iterator[Order]:
        """The orders as they come, until nobody is there any more."""
        while data := self._control.recv(1 << 18):
            yield from self._frames.feed(data)

    def tell(self, message: object) -> None:
        """Sends one message; a front that is gone ends this process."""
        try:
            self._control.sendall(frame(message))
        except OSError:
            os._exit(0)

    def said(self, text: str) -> None:
        """A sentence for the person."""
        self.tell(Says(text))

    def begins(self, doing: str) -> bool:
        """Says what comes next; False where it is to be left out, because a host ended in it."""
        self.tell(Begins(doing))
        return doing not in self.leave_out


def main(arguments: Sequence[str]) -> None:
    """`--control=FRONT [--control=PREPARED] --workers=N [--work=FOLDER]`: started by `supervise.host`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", type=int, action="append", required=True)
    parser.add_argument("--workers", required=True)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--values", type=Path, required=True)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Where the front removes it, should this process be ended; its trials keep what they have.
    options.values.mkdir(parents=True, exist_ok=True)
    tempfile.tempdir = str(options.values)
    environment = dict(os.environ)
    # The host itself needs no device; its trials get the environment from before.
    os.environ.update(without_devices())
    front = Front(socket.socket(fileno=options.control[0]))
    front.tell(HostStarted(os.getpid()))
    prepared = None
    if len(options.control) > 1:
        prepared = PreparedInterpreter.joined(socket.socket(fileno=options.control[1]), environment)
    try:
        place = {} if options.work is None else {"folder": options.work}
        workers = open_workers(options.workers, prepared, environment=environment, **place)
    except SleuthError as error:
        workers = None
        refusal = error
    # While the workers load: what a search needs.
    from torchsleuth.search.host.steps import STEPS, CaseQuestions
    from torchsleuth.torch_core.repro.tiny import tiny_trial

    questions = None if workers is None else CaseQuestions(workers, options.values, front.begins)
    if workers is not None and options.device:
        workers.submit(tiny_trial(device=options.device, stage="codegen"), fresh=True)  # nobody waits for it
    for order in front.orders():
        if questions is None:
            front.tell(Refused(str(refusal), refusal.exit_status))
            continue
        front.leave_out = frozenset(order.leave_out)
        do_step(STEPS[type(order)], front, questions, order)
    if workers is not None:
        workers.close()
    os._exit(0)


def do_step(step: Callable[..., Done], front: Front, questions: object, order: Order) -> None:
    """Does one step of an order and tells the front what came of it, whatever that is."""
    try:
        front.tell(step(front, questions, order))
    except SleuthError as error:
        front.tell(Refused(str(error), error.exit_status))
    except Exception as error:
        if isinstance(error, OSError) and (unwritten := _below(error.filename, order.folder)):
            why = f"{unwritten} cannot be written ({error.strerror}); what was found before is kept"
            front.tell(Refused(why, 1))
            return
        traceback.print_exc()
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        front.tell(Refused(f"a bug in torchsleuth: {type(error).__name__}: {error} ({place})", 1))


def _below(file: object, folder: str) -> Path | None:
    """A file of the case, or of the cases, that an order is about."""
    return Path(file) if isinstance(file, (str, Path)) and Path(folder) in Path(file).parents else None
