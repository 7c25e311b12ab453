"""The fork server: a process with torch loaded and warmed up that makes, watches and ends one process per trial.

It runs nothing of a trial itself and never touches an accelerator, so it stays clean; its children start warm and
share its memory. It has one thread, ends when its parent does, and takes everything it started along.
"""

from __future__ import annotations

import argparse
import gc
import os
import selectors
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torchsleuth.processes.frames import BrokenFrame, Frames, frame, write_all
from torchsleuth.processes.limits import Limits, limits_from_json
from torchsleuth.processes.tree import (
    TOKEN,
    adopt_orphans,
    children_of,
    descendants_of,
    kill_group,
    kill_marked,
    resident_bytes,
    tasks_running,
)
from torchsleuth.trials.child import WHERE_ARE_YOU, named_function, run_and_tell, trials_from
from torchsleuth.trials.child_process import Job, Seat, outcome_of, read_some
from torchsleuth.trials.kernel_cache import drop_torn
from torchsleuth.trials.starting import Work, fork_seat, spawn_seat

# Memory grows by at most a gigabyte or two per second, a fork bomb by some hundred processes: both stay bounded.
TICK = 0.05
IDLE_TICK = 1.0
# For a process to say where it hangs.
LAST_WORDS = 0.3
# A warm-up that takes this long has hung; the parent then starts a server without one.
WARM_UP_SECONDS = 120
# The number of the one job that is no trial.
LEARNER = 0
ACCELERATORS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


class Server:
    """The event loop: messages from the parent, words and prints of the children, their ends, the clock."""

    def __init__(
        self, control: socket.socket, options: argparse.Namespace, environment: dict[str, str]
    ) -> None:
        self.control = control
        self.options = options
        # What an accelerator process gets: the environment from before the devices were hidden.
        self.environment = environment
        self.parent = os.getppid()
        self.frames = Frames()
        self.seats: dict[int, Seat] = {}
        self.sent = False
        # Whether trials can do without what the learner will tell: they are slower then, but need not wait.
        self.knows_enough = False
        self.learner: Seat | None = None
        # Trials that get as far as the C++ compiler, until the learner has told what it can do.
        self.waiting: list[dict[str, Any]] = []
        self.tasks_at_rest = tasks_running()
        self.next_watch = 0.0
        self.wake, wakes = os.pipe()
        for descriptor in (self.wake, wakes):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        self.own = [control.fileno(), self.wake, wakes]
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ)
        self.selector.register(self.wake, selectors.EVENT_READ)

    # -- hearing

    def tell(self, message: dict[str, Any]) -> None:
        try:
            self.control.sendall(frame(message))
        except OSError:
            self.end()

    def loop(self) -> None:
        while True:
            self.keep_one_ready()
            busy = any(seat.job for seat in self.seats.values())
            for key, _ in self.selector.select(TICK if busy else IDLE_TICK):
                self.serve(key)
            self.reap()
            self.watch()
            if os.getppid() != self.parent:
                self.end()

    def serve(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self.control:
            self.hear_parent()
        elif key.fd == self.wake:
            read_some(self.wake)
        else:
            seat: Seat = key.data
            if key.fd == seat.output:
                more = seat.listen()
            else:
                more, decided = seat.hear()
                if decided:
                    self.decided(seat)
            if not more:
                self.selector.unregister(key.fd)

    def hear_parent(self) -> None:
        messages: list[Any] = []
        try:
            data = self.control.recv(1 << 20)
            messages = self.frames.feed(data)
        except (OSError, BrokenFrame):
            data = b""
        if not data:
            self.end()
        for message in messages:
            if "cancel" in message:
                self.cancel(message["cancel"])
            elif message["kernels"] and self.learning():
                self.waiting.append(message)
            else:
                self.start(message)

    def cancel(self, number: int) -> None:
        if any(message["number"] == number for message in self.waiting):
            self.waiting = [message for message in self.waiting if message["number"] != number]
            self.tell({"done": number, "outcome": None, "phase": "queued"})
        for seat in self.seats.values():
            if seat.job and seat.job.number == number:
                self.kill(seat, "cancel")

    # -- starting

    def start(self, message: dict[str, Any]) -> None:
        once = not message["warm"]
        seat = next((s for s in self.seats.values() if s.ready and s.once is once), None)
        if seat is None:
            seat = self.fork(self.one_trial) if once else self.spawn()
        seat.take(Job(message["number"], limits_from_json(message["limits"])))
        self.tell({"started": message["number"], "pid": seat.pid})
        try:
            write_all(seat.commands, frame(message))
        except OSError:  # it has just died: its end will be noticed as that of this job
            pass

    def one_trial(self, commands: int, results: int) -> None:
        for trial in trials_from(commands):
            run_and_tell(self.options.call, trial, results)
            return

    def keep_one_ready(self) -> None:
        """One process more than works, so that no trial waits for a fork, or for a device to be set up again."""
        seats = self.seats.values()
        if not any(seat.ready and seat.once for seat in seats):
            self.fork(self.one_trial)
        on_device = [seat for seat in seats if not seat.once]
        if on_device and not any(seat.ready for seat in on_device):
            self.spawn()

    def fork(self, work: Work) -> Seat:
        held = [descriptor for seat in self.seats.values() for descriptor in seat.descriptors]
        return self.seat(fork_seat(work, [*self.own, *held]))

    def spawn(self) -> Seat:
        return self.seat(spawn_seat(self.environment, self.options.call, self.options.still_good))

    def seat(self, seat: Seat) -> Seat:
        for descriptor in (seat.results, seat.output):
            self.selector.register(descriptor, selectors.EVENT_READ, seat)
        self.seats[seat.pid] = seat
        return seat

    def learning(self) -> bool:
        """Whether a process of its own is finding out what the kernels of all trials need to know.

        It is sent with the first trial that has kernels: a search that ends in lowering never needs it.
        """
        if self.options.learn and not self.sent:
            self.sent = True
            learn = named_function(self.options.learn.split(",")[0])
            self.learner = self.fork(lambda _, results: write_all(results, frame({"learned": learn()})))
            self.learner.take(Job(LEARNER, Limits()))
        return self.learner is not None and not self.knows_enough

    def learned(self, what: Any) -> None:
        self.learner = None
        if what is not None:
            named_function(self.options.learn.split(",")[1])(what)
            for seat in self.seats.values():
                if seat.ready and seat.once:  # made before we knew
                    seat.ready = False
                    kill_group(seat.pid)
        waiting, self.waiting = self.waiting, []
        for message in waiting:
            self.start(message)

    # -- ending

    def decided(self, seat: Seat) -> None:
        """The job has its outcome; a process that serves no more has nothing left to do."""
        if not seat.ready:
            kill_group(seat.pid)
        if seat is not self.learner:
            self.report(seat, None)

    def report(self, seat: Seat, status: int | None) -> None:
        job, seat.job = seat.job, None
        if job is not None:
            outcome = None if job.ended == "cancel" else outcome_of(job, status, seat.kept.text())
            self.tell({"done": job.number, "outcome": outcome, "phase": job.phase})

    def kill(self, seat: Seat, why: str) -> None:
        if seat.job is None or seat.job.ended is not None:
            return
        seat.job.ended = why
        if why == "hang":
            self.signal([seat.pid], WHERE_ARE_YOU)
            seat.kill_at = time.monotonic() + LAST_WORDS
        else:
            kill_group(seat.pid)

    def reap(self) -> None:
        ended = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            ended = True
            if pid in self.seats:
                self.bury(self.seats.pop(pid), os.waitstatus_to_exitcode(status))
        if ended:
            self.end_orphans()

    def bury(self, seat: Seat, status: int) -> None:
        kill_group(seat.pid)
        seat.hear()
        # What it printed last lies in the pipe still; what it left behind may go on printing, and is not waited for.
        for _ in range(8):
            seat.listen()
        if seat.job is not None and seat.job.outcome is None:
            # Whatever it was compiling may be half-written.
            drop_torn(Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", os.devnull)), seat.job.started_at)
        if seat is not self.learner:
            self.report(seat, status)
        for descriptor in (seat.results, seat.output):
            if descriptor in self.selector.get_map():
                self.selector.unregister(descriptor)
        for descriptor in seat.descriptors:
            os.close(descriptor)
        if seat is self.learner:
            self.learned(seat.learned)

    def end_orphans(self) -> None:
        """What left its trial's session and lost its parent has become our child."""
        self.signal((pid for pid in children_of(os.getpid()) if pid not in self.seats), signal.SIGKILL)

    def signal(self, processes: Iterable[int], number: signal.Signals) -> None:
        for pid in processes:
            try:
                os.kill(pid, number)
            except OSError:  # it has ended by itself
                pass

    def watch(self) -> None:
        """Looks after clocks, memory and number of processes."""
        now = time.monotonic()
        if now < self.next_watch:
            return
        self.next_watch = now + TICK
        grown = tasks_running() - self.tasks_at_rest
        for seat in list(self.seats.values()):
            job = seat.job
            if seat.kill_at is not None and now > seat.kill_at:
                seat.kill_at = None
                kill_group(seat.pid)
            if job is None or job.ended is not None:
                continue
            used = resident_bytes(seat.pid)
            job.peak = max(job.peak, used)
            if job.overdue(now):
                self.kill(seat, "hang")
            elif job.limits.memory and used > job.limits.memory:
                self.kill(seat, "memory")
            elif grown > job.limits.processes:
                below = descendants_of(seat.pid)
                if len(below) > job.limits.processes:
                    self.kill(seat, "processes")
                    self.signal(below, signal.SIGKILL)
        if grown > 0:
            self.end_orphans()

    def end(self) -> None:
        """Leaves nothing behind."""
        for seat in self.seats.values():
            kill_group(seat.pid)
        if TOKEN in os.environ:
            kill_marked(os.environ[TOKEN])
        if self.options.scratch:
            shutil.rmtree(self.options.scratch, ignore_errors=True)
        os._exit(0)


def main(arguments: list[str]) -> None:
    """Started by `workers.pool`; speaks frames over the socket whose number it is given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--call", required=True)
    parser.add_argument("--still-good", required=True)
    parser.add_argument("--warm-up")
    parser.add_argument("--learn")
    parser.add_argument("--scratch")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    control = socket.socket(fileno=options.control)
    environment = dict(os.environ)
    # Devices are hidden, and asking whether there are any must not wake the driver.
    os.environ.update({**dict.fromkeys(ACCELERATORS, ""), "PYTORCH_NVML_BASED_CUDA_CHECK": "1"})
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    facts: dict[str, Any] = {}
    gc.disable()  # loading makes a million objects, none of them garbage
    if options.warm_up:
        signal.alarm(WARM_UP_SECONDS)
        facts = named_function(options.warm_up)() or {}
        signal.alarm(0)
    gc.enable()
    gc.collect()
    gc.freeze()  # a collection in a child would touch, and so copy, every page it shares with us
    server = Server(control, options, environment)
    server.knows_enough = bool(facts.get("vector_instructions_known"))
    threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1
    server.tell({"hello": {"seconds": time.monotonic() - started, "threads": threads, **facts}})
    server.loop()


if __name__ == "__main__":
    main(sys.argv[1:])
