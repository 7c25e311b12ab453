"""The fork server: a process with torch loaded that makes, watches and ends processes, and runs nothing itself.

Two kinds of order: a trial (one process, one Outcome, under its limits) and "become" (a process that goes on as a
script, as the search host, or as another server). It never touches an accelerator, so it stays clean; what it forks
starts warm and shares its memory. It has one thread, ends when its parent does, and takes all it started along.
The prepared interpreter (`trials.interpreter`) and the server of the trials are both one of these.
"""

from __future__ import annotations

import argparse
import gc
import os
import selectors
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torchsleuth.child.child import WHERE_ARE_YOU, named_function, run_and_tell, trials_from
from torchsleuth.child.child_process import (
    DEVICE,
    ONCE,
    ChildProcess,
    Job,
    Work,
    fork_child,
    outcome_of,
    read_some,
    spawn_child,
)
from torchsleuth.core.processes.kernel_caches import drop_torn, drop_unfinished_headers
from torchsleuth.core.processes.limits import Limits
from torchsleuth.core.processes.starting import without_devices
from torchsleuth.core.processes.tree import (
    TOKEN,
    UNMARKED,
    adopt_orphans,
    children_of,
    descendants_of,
    kill_descendants,
    kill_group,
    kill_marked,
    resident_bytes,
    send,
    tasks_running,
)
from torchsleuth.core.protocol.codec import Document
from torchsleuth.core.protocol.frames import (
    Become,
    BrokenFrame,
    Ended,
    Forked,
    Frames,
    Join,
    Kill,
    frame,
    write_all,
)
from torchsleuth.core.protocol.trials import (
    ORDERS,
    Cancel,
    Good,
    Hello,
    Learned,
    RunTrial,
    TrialDone,
    TrialStarted,
)

# Memory grows by at most a gigabyte or two per second, a fork bomb by some hundred processes: both stay bounded.
TICK = 0.05
IDLE_TICK = 1.0
# For a process to say where it hangs.
LAST_WORDS = 0.3
# A warm-up that takes this long has hung; the parent then starts a server without one.
WARM_UP_SECONDS = 120
# The number of the one job that is no trial.
PROBE = 0
# Descriptors that may come with one order.
MOST_DESCRIPTORS = 4


@dataclass
class Client:
    """Someone who gives orders over a socket: the parent, or whom the parent let join."""

    control: socket.socket
    frames: Frames[object] = field(default_factory=lambda: Frames(*ORDERS))
    # Descriptors that came and were not asked for yet.
    handed: list[int] = field(default_factory=list)

    def send(self, message: object) -> bool:
        """Sends a message; False where nobody is there any more."""
        try:
            self.control.sendall(frame(message))
        except OSError:
            return False
        return True

    def receive(self) -> list[object] | None:
        """The orders that came; None where nobody is there any more."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.control, 1 << 18, MOST_DESCRIPTORS)
            self.handed += descriptors
            return self.frames.feed(data) if data else None
        except (OSError, BrokenFrame):
            return None

    def taken(self, message: Join | Become) -> list[int]:
        """The descriptors that came with an order."""
        taken, self.handed[:] = self.handed[: message.descriptors], self.handed[message.descriptors :]
        return taken


class Server:
    """The event loop: orders, words and prints of the children, their ends, the clock.

    `call` names the function that runs a trial; without it only "become" is understood. `environment` is what a process
    for an accelerator gets: the one from before the devices were hidden.
    """

    def __init__(
        self,
        control: socket.socket,
        *,
        call: str | None = None,
        still_good: str = "",
        learn: str | None = None,
        scratch: str | None = None,
        environment: dict[str, str] | None = None,
        after_fork: Callable[[], None] = lambda: None,
    ) -> None:
        self.client = Client(control)
        self.clients = [self.client]
        self.call, self.still_good, self.learn, self.scratch = call, still_good, learn, scratch
        self.environment = environment or {}
        self.after_fork = after_fork
        self.parent = os.getppid()
        self.children: dict[int, ChildProcess] = {}
        # Processes that became something else: who asked for them, and under which number.
        self.others: dict[int, tuple[Client, int]] = {}
        self.order: tuple[Become, list[int]] | None = None
        self.sent = False
        # Whether trials can do without what the probe will tell: they are slower then, but need not wait.
        self.knows_enough = False
        self.probe: ChildProcess | None = None
        # Trials that get as far as the C++ compiler, until the probe has told what it can do.
        self.waiting: list[RunTrial] = []
        self.tasks_at_rest = tasks_running()
        self.next_watch = 0.0
        self.wake, self.wakes = os.pipe()
        for descriptor in (self.wake, self.wakes):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wakes, warn_on_full_buffer=False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ, self.client)
        self.selector.register(self.wake, selectors.EVENT_READ)

    # -- messages

    def send(self, message: object) -> None:
        if not self.client.send(message):
            self.end()

    def loop(self) -> tuple[Become, list[int]]:
        """Serves until the parent is gone. A process that is to become something else leaves with that order."""
        while True:
            self.keep_one_ready()
            busy = any(child.job for child in self.children.values())
            for key, _ in self.selector.select(TICK if busy else IDLE_TICK):
                self.serve(key)
                if self.order is not None:
                    return self.order
            self.reap()
            self.watch()
            if os.getppid() != self.parent:
                self.end()

    def serve(self, key: selectors.SelectorKey) -> None:
        if isinstance(key.data, Client):
            self.receive(key.data)
        elif key.fd == self.wake:
            read_some(self.wake)
        else:
            child: ChildProcess = key.data
            if key.fd == child.output:
                more = child.listen()
            else:
                more, decided = child.receive()
                if decided:
                    self.decided(child)
            if not more:
                self.selector.unregister(key.fd)

    def receive(self, client: Client) -> None:
        messages = client.receive()
        if messages is None:
            self.leave(client)
            return
        for message in messages:
            match message:
                case Cancel():
                    self.cancel(message.number)
                case Kill():
                    self.kill_others(client, message.number)
                case Join():
                    self.join(client.taken(message)[0])
                case Become():
                    self.fork_other(client, message)
                    if self.order is not None:
                        return
                # What is found out is about the C++ compiler, of which a device's kernels know nothing.
                case RunTrial() if message.kernels and message.serves != DEVICE and self.learning():
                    self.waiting.append(message)
                case RunTrial():
                    self.start(message)

    def join(self, descriptor: int) -> None:
        client = Client(socket.socket(fileno=descriptor))
        self.clients.append(client)
        self.selector.register(client.control, selectors.EVENT_READ, client)

    def leave(self, client: Client) -> None:
        """A client is gone: so is what became of its orders, and with the parent everything."""
        if client is self.client:
            self.end()
        self.selector.unregister(client.control)
        client.control.close()
        self.clients.remove(client)
        self.kill_others(client)

    def kill_others(self, client: Client, number: int | None = None) -> None:
        for pid, (asked_by, asked_as) in self.others.items():
            if asked_by is client and number in (None, asked_as):
                kill_group(pid)

    def fork_other(self, client: Client, message: Become) -> None:
        """Forks a process that leaves this loop with its order, and keeps nothing of ours."""
        descriptors = client.taken(message)
        pid = os.fork()
        if pid:
            self.others[pid] = client, message.number
            client.send(Forked(message.number, pid))
            for descriptor in descriptors:
                os.close(descriptor)
            self.after_fork()
            return
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.selector.close()
        for each in self.clients:
            each.control.close()
        held = [d for child in self.children.values() for d in child.descriptors]
        for descriptor in (self.wake, self.wakes, *held):
            os.close(descriptor)
        self.order = message, descriptors

    def cancel(self, number: int) -> None:
        if any(message.number == number for message in self.waiting):
            self.waiting = [message for message in self.waiting if message.number != number]
            self.send(TrialDone(number, None, "queued"))
        for child in self.children.values():
            if child.job and child.job.number == number:
                self.kill(child, "cancel")

    # -- starting

    def start(self, message: RunTrial) -> None:
        serves = message.serves
        child = next((c for c in self.children.values() if c.ready and c.serves == serves), None)
        child = child or self.made(serves)
        child.take(Job(message.number, message.limits, child.pid))
        self.send(TrialStarted(message.number, child.pid))
        try:
            write_all(child.commands, frame(message))
        except OSError:  # it has just died: its end will be noticed as that of this job
            pass

    def made(self, serves: str) -> ChildProcess:
        if serves == DEVICE:
            return self.added(spawn_child(self.environment, str(self.call), self.still_good))

        def trials(commands: int, results: int) -> None:
            for trial in trials_from(commands):
                run_and_tell(str(self.call), trial, results)
                if serves == ONCE:
                    return
                write_all(results, frame(Good(True)))

        return self.fork(trials, serves)

    def keep_one_ready(self) -> None:
        """One process more than works, so that no trial waits for a fork, or for a device to be set up again."""
        if self.call is None:
            return
        children = self.children.values()
        if not any(child.ready and child.serves == ONCE for child in children):
            self.made(ONCE)
        on_device = [child for child in children if child.serves == DEVICE]
        if on_device and not any(child.ready for child in on_device):
            self.made(DEVICE)

    def fork(self, work: Work, serves: str = ONCE) -> ChildProcess:
        held = [descriptor for child in self.children.values() for descriptor in child.descriptors]
        own = [self.client.control.fileno(), self.wake, self.wakes]
        return self.added(fork_child(work, [*own, *held], serves))

    def added(self, child: ChildProcess) -> ChildProcess:
        for descriptor in (child.results, child.output):
            self.selector.register(descriptor, selectors.EVENT_READ, child)
        self.children[child.pid] = child
        return child

    def learning(self) -> bool:
        """Whether a process of its own is finding out what the kernels of all trials need to know.

        It is sent with the first trial that has kernels: a search that ends in lowering never needs it.
        """
        if self.learn and not self.sent:
            self.sent = True
            learn = named_function(self.learn.split(",")[0])
            self.probe = self.fork(lambda _, results: write_all(results, frame(Learned(learn()))))
            self.probe.take(Job(PROBE, Limits(), self.probe.pid))
        return self.probe is not None and not self.knows_enough

    def learned(self, what: object) -> None:
        self.probe = None
        if what is not None:
            named_function(str(self.learn).split(",")[1])(what)
            for child in self.children.values():
                if child.ready and child.serves == ONCE:  # made before we knew
                    child.ready = False
                    kill_group(child.pid)
        waiting, self.waiting = self.waiting, []
        for message in waiting:
            self.start(message)

    # -- ending

    def decided(self, child: ChildProcess) -> None:
        """The job has its outcome; a process that serves no more has nothing left to do."""
        if not child.ready:
            kill_group(child.pid)
        if child is not self.probe:
            self.report(child, None)

    def report(self, child: ChildProcess, status: int | None) -> None:
        job, child.job = child.job, None
        if job is not None:
            outcome = None if job.ended == "cancel" else outcome_of(job, status, child.printed.text())
            self.send(TrialDone(job.number, outcome, job.phase))

    def kill(self, child: ChildProcess, why: str) -> None:
        if child.job is None or child.job.ended is not None:
            return
        child.job.ended = why
        if why == "hang":
            send(child.pid, WHERE_ARE_YOU)
            child.kill_at = time.monotonic() + LAST_WORDS
        else:
            kill_group(child.pid)

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
            code = os.waitstatus_to_exitcode(status)
            if pid in self.children:
                self.clean_up_after(self.children.pop(pid), code)
            elif pid in self.others:
                kill_group(pid)  # what it started goes with it
                client, number = self.others.pop(pid)
                client.send(Ended(number, code))
        if ended:
            self.end_orphans()

    def clean_up_after(self, child: ChildProcess, status: int) -> None:
        kill_group(child.pid)
        child.receive()
        # What it printed last lies in the pipe still; what it left behind may go on printing, and is not waited for.
        for _ in range(8):
            child.listen()
        if child.job is not None and child.job.outcome is None:
            # Whatever it was compiling may be half-written.
            cache = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", os.devnull))
            drop_torn(cache, child.job.started_at, descendants_of(os.getpid()))
            drop_unfinished_headers()
        if child is not self.probe:
            self.report(child, status)
        for descriptor in child.descriptors:
            if descriptor in self.selector.get_map():
                self.selector.unregister(descriptor)
            os.close(descriptor)
        if child is self.probe:
            self.learned(child.learned)

    def end_orphans(self) -> None:
        """What left its trial's session and lost its parent has become our child."""
        for pid in children_of(os.getpid()):
            if pid not in self.children and pid not in self.others:
                send(pid, signal.SIGKILL)

    def watch(self) -> None:
        """Looks after clocks, memory and number of processes."""
        now = time.monotonic()
        if now < self.next_watch:
            return
        self.next_watch = now + TICK
        grown = tasks_running() - self.tasks_at_rest
        for child in list(self.children.values()):
            job = child.job
            if child.kill_at is not None and now > child.kill_at:
                child.kill_at = None
                kill_group(child.pid)
            if job is None or job.ended is not None:
                continue
            used = resident_bytes(child.pid)
            job.peak = max(job.peak, used)
            if (why := job.overdue(now)) is not None:
                self.kill(child, why)
            elif job.limits.memory and used > job.limits.memory:
                self.kill(child, "memory")
            elif grown > job.limits.processes:
                below = descendants_of(child.pid)
                if len(below) > job.limits.processes:
                    self.kill(child, "processes")
                    for pid in below:
                        send(pid, signal.SIGKILL)
        if grown > 0:
            self.end_orphans()

    def end(self) -> None:
        """Leaves nothing behind."""
        for pid in (*self.children, *self.others):
            kill_group(pid)
        token = os.environ.get(TOKEN, UNMARKED)
        if token != UNMARKED:  # else it would end the prepared interpreters of everyone
            kill_marked(token)
        kill_descendants()
        drop_unfinished_headers(patience=LAST_WORDS)
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
    parser.add_argument("--temporary")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    control = socket.socket(fileno=options.control)
    environment = dict(os.environ)
    os.environ.update(without_devices())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    gc.disable()  # loading makes a million objects, none of them garbage
    signal.alarm(WARM_UP_SECONDS)
    facts: Document = (named_function(options.warm_up)() if options.warm_up else None) or {}
    signal.alarm(0)
    if options.temporary:
        # For trials, which may be killed, and their C++ compilers. Not before torch has chosen where it keeps its
        # precompiled headers: everybody's are meant to be there.
        tempfile.tempdir = os.environ["TMPDIR"] = options.temporary
    gc.enable()
    gc.collect()
    gc.freeze()  # a collection in a child would touch, and so copy, every page it shares with us
    server = Server(
        control,
        call=options.call,
        still_good=options.still_good,
        learn=options.learn,
        scratch=options.scratch,
        environment=environment,
    )
    server.knows_enough = bool(facts.get("vector_instructions_known"))
    threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1
    server.send(Hello(time.monotonic() - started, threads, facts))
    server.loop()
