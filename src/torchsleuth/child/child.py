"""The inside of an isolated process: cuts its ties, runs one function on a trial, and says what came of it.

It ends by `os._exit`: a compiled library that crashes in its own destructor has told its story before that.
The function is known by name only ("package.module:function"), so this room needs not know who tries what.

`main` is a process that runs many trials one after the other, for devices whose set-up costs more than a trial. A
forked process cannot use an accelerator that its parent has touched, so it is started anew and keeps its context. It
goes on only while it is as good as new: after a crash, a hang, a poisoned context or a trial that brought definitions
of its own, another takes its place.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torchsleuth.core.processes.tree import be_first_to_go, bound_processes, die_with
from torchsleuth.core.protocol.codec import from_json
from torchsleuth.core.protocol.frames import Frames, frame, write_all
from torchsleuth.core.protocol.trials import Good, Outcome, Phase, Question, RunTrial, Trial

# Asks a process that takes too long where it is; Python's handler answers even while the GIL is held.
WHERE_ARE_YOU = signal.SIGUSR2


def named_function(name: str) -> Callable[..., Any]:
    """The function that "package.module:function" names: `named_function("os.path:join")`."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def isolate(server: int, inherited: Iterable[int], output: int) -> None:
    """Makes a forked process one of its own: session, signals, descriptors; tied to the server's life."""
    os.setsid()
    die_with(server)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    for descriptor in inherited:
        os.close(descriptor)
    silence = os.open(os.devnull, os.O_RDONLY)
    os.dup2(silence, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(silence)
    os.close(output)


def trials_from(commands: int) -> Iterator[Trial]:
    """The trials that come over the descriptor; this process is bounded as the first of them says."""
    frames = Frames(RunTrial)
    bounded = False
    while data := os.read(commands, 1 << 18):
        for message in frames.feed(data):
            if not bounded:
                be_first_to_go()
                limits = message.limits
                bound_processes(limits.processes)
                signal.setitimer(signal.ITIMER_PROF, limits.cpu or 0.0)  # ends the process when it rings
                faulthandler.enable()
                faulthandler.register(WHERE_ARE_YOU, all_threads=True)
                bounded = True
            yield from_json(Trial, json.loads(message.trial))


# What a process can do once: an operator is known to all of torch by its name.
_REGISTERS = re.compile(r"custom_op|triton_op|\blibrary\b|Library\(|register_")


def run_and_tell(call: str, trial: Trial, results: int) -> None:
    """Runs the named function on the trial and writes its outcome to the descriptor `results`."""

    def announce(phase: str) -> None:
        write_all(results, frame(Phase(phase)))

    try:
        outcome = named_function(call)(trial, announce)
    except SystemExit as end:
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
    except BaseException as error:
        why = f"the trial could not be run: {type(error).__name__}: {error}"
        outcome = Outcome(None, 0.0, error=why, text=traceback.format_exc())
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # the trial may have closed or replaced it
            pass
    write_all(results, frame(outcome))


def main(arguments: list[str]) -> None:
    """`SERVER COMMANDS RESULTS CALL STILL_GOOD`: the server's process, two descriptors, two functions by name."""
    server, commands, results = (int(number) for number in arguments[:3])
    call, still_good = arguments[3:]
    die_with(server)
    named_function(still_good)()  # loads what trials need, while none waits
    for trial in trials_from(commands):
        run_and_tell(call, trial, results)
        # Shapes are asked for often, by trials that all bring the same definitions.
        # So do kernels of Triton's: what is defined once may be defined again, and a device takes seconds to set up.
        kernels = "@triton." in trial.embedded and not _REGISTERS.search(trial.embedded)
        stays = not trial.embedded or kernels or trial.question is Question.SHAPES
        stays = stays and trial.question is not Question.PROGRAM
        good = stays and bool(named_function(still_good)())
        write_all(results, frame(Good(good)))
        if not good:
            break
    os._exit(0)
