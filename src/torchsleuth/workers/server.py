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
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torchsleuth.workers.child import WHERE_ARE_YOU, isolate, named_function, run_and_tell
from torchsleuth.workers.environment import python_command
from torchsleuth.workers.kept import KeptOutput
from torchsleuth.workers.kernels import drop_torn
from torchsleuth.workers.limits import Limits, limits_from_json
from torchsleuth.workers.processes import (
    TOKEN,
    adopt_orphans,
    children_of,
    descendants_of,
    kill_group,
    kill_marked,
    resident_bytes,
    tasks_running,
)
from torchsleuth.workers.seats import Job, Seat, outcome_of, read_some
from torchsleuth.workers.wire import BrokenFrame, Frames, frame, trial_from_json, write_all

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
        self.call: str = options.call
        self.still_good: str = options.still_good
        # What is found out in the background, by name: (learn, recall), and the process that does.
        self.lesson: list[str] = options.learn.split(",") if options.learn else []
        self.learner: Seat | None = None
        self.waiting: list[dict[str, Any]] = []
        # A folder of this server's own, removed with it.
        self.scratch: str | None = options.scratch
        # What an accelerator process gets: the environment from before the devices were hidden.
        self.environment = environment
        self.parent = os.getppid()
        self.frames = Frames()
        self.seats: dict[int, Seat] = {}
        self.selector = selectors.DefaultSelector()
        self.tasks_at_rest = tasks_running()
        self.next_watch = 0.0
        self.wake, wakes = os.pipe()
        for descriptor in (self.wake, wakes):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        self.own = [control.fileno(), self.wake, wakes]
        self.selector.register(control, selectors.EVENT_READ)
        self.selector.register(self.wake, selectors.EVENT_READ)

    def tell(self, message: dict[str, Any]) -> None:
        try:
            self.control.sendall(frame(message))
        except OSError:
            self.end()

    def loop(self) -> None:
        while True:
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
        elif key.data.pid in self.seats:
            seat: Seat = key.data
            if key.fd == seat.results:
                if seat.hear():
                    self.decided(seat)
            elif not seat.listen():
                self.selector.unregister(key.fd)

    def hear_parent(self) -> None:
        try:
            data = self.control.recv(1 << 20)
            messages = self.frames.feed(data) if data else []
        except (OSError, BrokenFrame):
            self.end()
        if not data:
            self.end()
        for message in messages:
            if "trial" in message:
                if message["kernels"] and self.learner is not None:
                    self.waiting.append(message)
                else:
                    self.start(message)
            elif "cancel" in message:
                self.drop(message["cancel"])
                for seat in list(self.seats.values()):
                    if seat.job and seat.job.number == message["cancel"]:
                        self.kill(seat, "cancel")

    def drop(self, number: int) -> None:
        """Forgets a trial that waits to be started."""
        if any(message["number"] == number for message in self.waiting):
            self.waiting = [message for message in self.waiting if message["number"] != number]
            self.tell({"done": number, "outcome": None, "phase": "queued"})

    # -- starting

    def learn(self) -> None:
        """Finds out in a process of its own what the kernels of all trials need to know."""
        if not self.lesson:
            return
        job = Job(LEARNER, Limits())

        def teach(result: int) -> None:
            write_all(result, frame({"learned": named_function(self.lesson[0])()}))

        self.learner = self.fork(job, teach)
        self.learner.job = job

    def learned(self, what: Any) -> None:
        self.learner = None
        if what is not None:
            named_function(self.lesson[1])(what)
        waiting, self.waiting = self.waiting, []
        for message in waiting:
            self.start(message)

    def start(self, message: dict[str, Any]) -> None:
        job = Job(message["number"], limits_from_json(message["limits"]))
        if not message["warm"]:
            trial = trial_from_json(message["trial"])
            seat = self.fork(job, lambda result: run_and_tell(self.call, trial, result))
        else:
            seat = next((s for s in self.seats.values() if s.ready), None) or self.spawn(job.limits)
            seat.kept = KeptOutput(job.limits.output)
            seat.ready = False
            assert seat.commands is not None
            try:
                write_all(seat.commands, frame(message))
            except OSError:  # it has just died: its end will be noticed as that of this job
                pass
        seat.job = job
        self.tell({"started": job.number, "pid": seat.pid})

    def fork(self, job: Job, work: Callable[[int], None]) -> Seat:
        results, result = os.pipe()
        output, out = os.pipe()
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                held = [
                    d for s in self.seats.values() for d in (s.results, s.output, s.commands) if d is not None
                ]
                isolate(server, [*self.own, *held, results, output], out, job.limits)
                work(result)
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(0)
        os.close(result)
        os.close(out)
        return self.seat(Seat(pid, results, output, KeptOutput(job.limits.output)))

    def spawn(self, limits: Limits) -> Seat:
        commands_read, commands = os.pipe()
        results, result = os.pipe()
        output, out = os.pipe()
        numbers = (os.getpid(), commands_read, result)
        started = subprocess.Popen(
            python_command(sys.executable, "torchsleuth.workers.warm", *numbers, self.call, self.still_good),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=self.environment,
            start_new_session=True,
            pass_fds=(commands_read, result),
        )
        started.returncode = 0  # reaped by us, not by Popen
        for descriptor in (commands_read, result, out):
            os.close(descriptor)
        return self.seat(Seat(started.pid, results, output, KeptOutput(limits.output), commands))

    def seat(self, seat: Seat) -> Seat:
        for descriptor in (seat.results, seat.output):
            os.set_blocking(descriptor, False)
            self.selector.register(descriptor, selectors.EVENT_READ, seat)
        self.seats[seat.pid] = seat
        return seat

    # -- ending

    def decided(self, seat: Seat) -> None:
        """The job has its outcome; a forked process has nothing left to do."""
        if seat.commands is None or not seat.ready:
            kill_group(seat.pid)
        else:
            self.report(seat, None)

    def report(self, seat: Seat, status: int | None) -> None:
        job, seat.job = seat.job, None
        if job is None or job.number == LEARNER:
            return
        cancelled = job.ended == "cancel"
        # A child that has ended may have left prints in the pipe.
        for _ in range(64):
            if not seat.listen():
                break
        outcome = None if cancelled else outcome_of(job, status, seat.kept.text())
        self.tell({"done": job.number, "outcome": outcome, "phase": job.phase})

    def kill(self, seat: Seat, why: str) -> None:
        if seat.job is None or seat.job.ended is not None:
            return
        seat.job.ended = why
        if why == "hang":
            try:
                os.kill(seat.pid, WHERE_ARE_YOU)
            except OSError:
                pass
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
                self.bury(self.seats[pid], os.waitstatus_to_exitcode(status))
        if ended:
            self.end_orphans()

    def bury(self, seat: Seat, status: int) -> None:
        kill_group(seat.pid)
        seat.hear()
        job = seat.job
        if job is not None and job.outcome is None:
            # Whatever it was compiling may be half-written.
            drop_torn(Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", os.devnull)), job.started_at)
        self.report(seat, status)
        for descriptor in (seat.results, seat.output):
            try:
                self.selector.unregister(descriptor)
            except KeyError:
                pass
        seat.close()
        del self.seats[seat.pid]
        if seat is self.learner:
            self.learned(seat.learned)

    def end_orphans(self) -> None:
        """What left its trial's session and lost its parent has become our child."""
        self.end_all(pid for pid in children_of(os.getpid()) if pid not in self.seats)

    def end_all(self, processes: Iterable[int]) -> None:
        for pid in processes:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:  # it has ended by itself
                pass

    def watch(self) -> None:
        """Looks after clocks, memory and number of processes."""
        now = time.monotonic()
        if now < self.next_watch:
            return
        self.next_watch = now + TICK
        bombs = tasks_running() - self.tasks_at_rest if self.seats else 0
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
            elif bombs > job.limits.processes:
                below = descendants_of(seat.pid)
                if len(below) > job.limits.processes:
                    self.kill(seat, "processes")
                    self.end_all(below)
        if bombs > 0:
            self.end_orphans()

    def end(self) -> None:
        """Leaves nothing behind."""
        for seat in self.seats.values():
            kill_group(seat.pid)
        if TOKEN in os.environ:
            kill_marked(os.environ[TOKEN])
        if self.scratch:
            shutil.rmtree(self.scratch, ignore_errors=True)
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
    for name in ACCELERATORS:
        os.environ[name] = ""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    facts: dict[str, Any] = {}
    if options.warm_up:
        signal.alarm(WARM_UP_SECONDS)
        facts = named_function(options.warm_up)() or {}
        signal.alarm(0)
    gc.collect()
    gc.freeze()  # a collection in a child would touch, and so copy, every page it shares with us
    server = Server(control, options, environment)
    threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1
    server.tell({"hello": {"seconds": time.monotonic() - started, "threads": threads, **facts}})
    if options.warm_up and not facts.get("learned"):
        server.learn()
    server.loop()


if __name__ == "__main__":
    main(sys.argv[1:])
