"""The processes that look at one graph: a fork of the program, or a process beside it where it cannot be forked.

What hangs, dies or fills memory there is a line of the log. A process that uses an accelerator cannot be forked, so
another one is started while the program compiles, and is handed the graph as text and the values of the call as copies.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import pickle
import re
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from torchsleuth.core.processes.sealed import confined, seal, why_not_confinable
from torchsleuth.core.processes.starting import fresh_environment, python_command
from torchsleuth.core.processes.tree import kill_group, resident_bytes, started_at
from torchsleuth.core.protocol.codec import from_json
from torchsleuth.torch_core.compare.reference.cloning import (
    has_plain_memory,
    map_tensors,
    same_bits,
    tensors_in,
)
from torchsleuth.torch_core.compare.reference.float64 import MEMORY_ERRORS
from torchsleuth.torch_core.compare.reference.memory import EXTRA, held_now, memory_left, program_bytes
from torchsleuth.torch_core.compare.verdict.look import (
    HEAD,
    NOT_SHARED,
    Called,
    Differentiated,
    Handed,
    Look,
    parameters_of,
)
from torchsleuth.torch_core.graphs.printer import Unprintable, print_graph
from torchsleuth.torch_internals.modes import Switches
from torchsleuth.torch_internals.operators import groups_of
from torchsleuth.torch_internals.tensors import CannotHand, hand_over, identity_of
from torchsleuth.watched import failures
from torchsleuth.watched.call_failures import CallVerdict
from torchsleuth.watched.call_judge import (
    as_child,
    content_of,
    ended_by,
    fork_of,
    how_it_ended,
    no_lock_of_progress_bars,
    see_no_devices,
    why_not_forked,
)
from torchsleuth.watched.call_state import CannotRepeat
from torchsleuth.watched.embed_slice import CannotEmbed
from torchsleuth.watched.graph_record import definitions_of

if TYPE_CHECKING:
    from torchsleuth.watched.watch import Watch


T = TypeVar("T")

# What the process beside the program may still need to be there; it is started when the first graph is compiled.
START_SECONDS = 90.0
POLL_MILLISECONDS = 50
# Starts what it is given as no child of ours, for which the program might wait, and says its number.
_DETACHED = """
import os, sys
said, *command = sys.argv[1:]
process = os.fork()
if process:
    os.write(int(said), b"%d\\n" % process)
    os._exit(0)
os.setsid()
os.execv(command[0], command)
"""


# ---- a fork


def done_apart(watch: Watch, work: Callable[[], T], seconds: float, waits: Callable[[], object]) -> T:
    """What `work` returns, done in a sealed fork within `seconds`; raises `CannotRepeat` where it gives nothing.

    It is forked in a thread of its own: one that has not run parallel code yet can do so in the fork, too. `waits` is
    called now and then.
    """
    answer = os.memfd_create("torchsleuth-graph")
    switches, ended = Switches.now(), list[int | OSError | None]()
    most = _data_bytes() + memory_left(torch.device("cpu"))

    def look() -> None:
        try:
            process = fork_of(watch)
            if process == 0:
                as_child(lambda: _alone(watch, work, switches, answer, most), answer, seconds=None)
            ended.append(ended_by(process, time.monotonic() + seconds, waits))
        except OSError as why:
            ended.append(why)

    try:
        # The program does not wait for it where it is interrupted; the fork ends with the thread.
        thread = threading.Thread(target=look, name="torchsleuth", daemon=True)
        thread.start()
        thread.join()
        content, status = content_of(answer), ended[0] if ended else None
    finally:
        os.close(answer)
    if isinstance(status, OSError):
        raise CannotRepeat(f"no process can be started beside the program: {status}")
    if status is None:
        raise CannotRepeat(f"the comparison took longer than {seconds:.0f} s")
    if not content:
        raise CannotRepeat(how_it_ended(status))
    if content.startswith(b"{"):
        raise CannotRepeat(str(from_json(CallVerdict, json.loads(content)).why_not))
    return pickle.loads(content)


def _alone(watch: Watch, work: Callable[[], object], switches: Switches, answer: int, most: int) -> bytes:
    watch.is_silent()
    no_lock_of_progress_bars()
    see_no_devices()
    seal([answer])
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    try:
        with switches.of_thread():
            return pickle.dumps(work())
    except MEMORY_ERRORS as error:
        raise CannotRepeat(f"there is not enough memory: {failures.describe(error)}") from error


def _data_bytes() -> int:
    """What this process holds of memory that it can write to, as the limit on it counts."""
    found = re.search(r"^VmData:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else resource.RLIM_INFINITY >> 1


# ---- a process beside


def handed(eager: torch.fx.GraphModule, call: Called | Differentiated, switches: Switches) -> Handed:
    """The call as another process is given it; raises `CannotRepeat` where that cannot be."""
    try:
        if groups_of(eager) is not None:
            raise LookupError
        printed = print_graph(eager)
        embedded = definitions_of(printed)
    except LookupError:
        raise CannotRepeat("it communicates with other ranks") from None
    except (Unprintable, CannotEmbed) as why:
        raise CannotRepeat(f"no other process can be given it: {why}") from None
    if isinstance(call, Called):
        after = [then if _unchanged(then, now) else now for then, now in zip(call.before, call.after)]
        call = replace(call, after=after, result=map_tensors(call.result, torch.Tensor.detach))
        values = [call.before, call.after, call.result]
    else:
        values = [call.inputs, call.results]
    return Handed(
        call,
        printed.source,
        (*printed.imports, *embedded.imports),
        embedded.source,
        dict(printed.constants),
        tuple(parameters_of(eager)),
        switches,
        {str(t.device): identity_of(t.device) for t in tensors_in(values)},
        program_bytes(values),
        held_now(values),
    )


def _unchanged(then: Any, now: Any) -> bool:
    return isinstance(then, torch.Tensor) and has_plain_memory(now) and same_bits(then, now)


class Checker:
    """The process that looks at graphs where none can be forked; it is started anew once it has ended."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.owner = self.process = self.began = 0
        self.descriptors: tuple[int, ...] = ()
        self.received = b""
        self.ready = False
        self.embedded = ""
        self.shares = True

    def get_ready(self, folder: Path) -> None:
        """Starts it while there is other work to wait for; `folder` is where it may write."""
        if why_not_forked() is not None and self.owner != os.getpid():
            self._start(folder)

    def asked(self, handed: Handed, folder: Path, seconds: float, waits: Callable[[], object]) -> Look:
        """What it finds within so many seconds; raises `CannotRepeat` where that is nothing, `CannotHand` where the
        values cannot be handed over."""
        if self.owner not in (0, os.getpid()):  # we are a fork, and the process is our parent's
            self.__init__()  # type: ignore[misc]
        with self.lock:
            # Definitions of the user's can be executed once.
            if handed.embedded and self.embedded not in ("", handed.embedded):
                self.end()
            if not self.process or started_at(self.process) != self.began:
                self._start(folder)
            self.embedded = self.embedded or handed.embedded
            orders, _, values = self.descriptors
            most = handed.memory["cpu"] + EXTRA
            said = (folder / _SAID).stat().st_size
            try:
                if not self.ready:
                    self._next(START_SECONDS, most, waits)
                    self.ready = True
                for shares in (True, False) if self.shares else (False,):
                    self.shares = shares
                    hand_over(handed, values, memory_left(torch.device("cpu")), shares)
                    os.write(orders, b"%d\n" % math.ceil(seconds))
                    look = self._next(seconds, most, waits)
                    if look.why_not != NOT_SHARED:
                        break
                return look
            except CannotHand:
                raise
            except _Ended as how:
                self.end()
                raise CannotRepeat(_last_words(folder, said) or str(how)) from None
            except BaseException:
                self.end()
                raise
            finally:
                if self.process:
                    os.ftruncate(values, 0)

    def end(self) -> None:
        """Ends it, and everything it started."""
        if self.process and self.owner == os.getpid():
            if started_at(self.process) == self.began:
                kill_group(self.process)
            for descriptor in self.descriptors:
                os.close(descriptor)
        self.process, self.received, self.ready, self.embedded = 0, b"", False, ""

    def _start(self, folder: Path) -> None:
        handler = signal.getsignal(signal.SIGCHLD)
        if callable(handler) and not str(getattr(handler, "__module__", "")).startswith("torch."):
            raise CannotRepeat("the program handles the end of its child processes itself")
        if not self.owner:
            atexit.register(self.end)
        self.owner = os.getpid()
        theirs, orders = os.pipe()
        answers, tells = os.pipe()
        values = os.memfd_create("torchsleuth-values")
        self.descriptors = orders, answers, values
        command = python_command(sys.executable, "torchsleuth.child.look", self.owner, theirs, tells, values)
        if why_not_confinable() is None:
            command = confined(command, str(folder))
        try:
            with open(folder / _SAID, "ab") as said:
                subprocess.run(
                    [sys.executable, "-I", "-S", "-c", _DETACHED, str(tells), *command],
                    env=fresh_environment(os.environ, folder / "cache"),
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    pass_fds=(theirs, tells, values),
                )
        except OSError as error:
            raise CannotRepeat(f"no process can be started beside the program: {error}") from error
        finally:
            os.close(theirs)
            os.close(tells)
        with open(answers, "rb", buffering=0, closefd=False) as file:
            self.process = int(file.readline() or 0)
        self.began = started_at(self.process)

    def _next(self, seconds: float, most: int, waits: Callable[[], object]) -> Look:
        until = time.monotonic() + seconds
        waiting = select.poll()
        waiting.register(self.descriptors[1], select.POLLIN)
        while True:
            if len(self.received) >= HEAD.size:
                end = HEAD.size + HEAD.unpack_from(self.received)[0]
                if len(self.received) >= end:
                    content, self.received = self.received[HEAD.size : end], self.received[end:]
                    return pickle.loads(content)
            if waiting.poll(POLL_MILLISECONDS):
                more = os.read(self.descriptors[1], 1 << 20)
                if not more:
                    raise _Ended("the process that looked at it has ended")
                self.received += more
            elif time.monotonic() > until:
                raise _Ended(f"the comparison took longer than {seconds:.0f} s")
            elif resident_bytes(self.process) > most:
                raise _Ended(f"there is not enough memory: it took more than {most >> 20} MB")
            waits()


class _Ended(Exception):
    """Why nothing more comes of that process."""


_SAID = "look.txt"


def _last_words(folder: Path, known: int) -> str | None:
    """How Python says that a process died, in what it wrote after the first `known` bytes."""
    with contextlib.suppress(OSError), open(folder / _SAID, "rb") as file:
        file.seek(known)
        found = re.findall(rb"Fatal Python error: (.*)", file.read())
        if found:
            return f"the process that looked at it has ended: {found[0].decode(errors='replace')}"
    return None
