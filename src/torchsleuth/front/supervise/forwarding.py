"""Signals that are sent to the supervisor are meant for the program: a batch system knows no other process of it.

What the terminal sends (Ctrl-C, Ctrl-\\) the kernel sends to the program as well, as both are in one process group;
the kernel says so with each signal. They are therefore not handled but waited for, which tells where each came from;
where a system has no such call (macOS), Ctrl-C counts as the terminal's.
"""

from __future__ import annotations

import signal
from types import TracebackType
from typing import Self

from torchsleuth.core.processes.child import Child

# Stops and continues are for the whole job; a fault of ours is ours; the rest cannot be had or says nothing.
_NOT_FORWARDED = {
    name
    for name in (
        *("SIGKILL", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGCONT", "SIGCHLD", "SIGWINCH", "SIGURG"),
        *("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS", "SIGPIPE", "SIGXFSZ"),
    )
    if hasattr(signal, name)
}
FORWARDED = frozenset(signal.valid_signals()) - {getattr(signal, name) for name in _NOT_FORWARDED}
_TERMINAL = frozenset({signal.SIGINT, signal.SIGQUIT})
WAITS = hasattr(signal, "sigtimedwait")


class Forwarder:
    """While it is open, signals are kept for `pass_on`: `with Forwarder(child) as f: f.pass_on(0.2)`.

    `sent` holds those that the program got so. One that the person has us ignore (nohup, a script's `&`) the program
    was born ignoring as well. It may handle it nevertheless, so it is passed on, and asks nothing of the rest of us.
    """

    def __init__(self, child: Child) -> None:
        self.child = child
        self.sent: set[int] = set()

    def __enter__(self) -> Self:
        self.ignored = {n for n in FORWARDED if signal.getsignal(n) is signal.SIG_IGN}
        self.wanted = FORWARDED | {signal.SIGCHLD}
        if WAITS:
            self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, self.wanted)
        else:
            self.handlers = {n: signal.signal(n, lambda n, _: self._send(n, _TERMINAL)) for n in FORWARDED}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if WAITS:
            while self._next(0.0):  # what came after the program's end is not for anyone
                pass
            signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        else:
            for number, handler in self.handlers.items():
                signal.signal(number, handler)

    def pass_on(self, seconds: float) -> None:
        """Waits for a signal, or the end of the program, and passes it on; returns after `seconds` at most."""
        if WAITS:
            self._next(seconds)
            return
        self.child.ended_within(seconds)

    def _next(self, seconds: float) -> bool:
        came = signal.sigtimedwait(self.wanted, seconds)
        if came is None:
            return False
        if came.si_signo != signal.SIGCHLD:
            self._send(came.si_signo, _TERMINAL if came.si_code > 0 else frozenset())
        return True

    def _send(self, number: int, reached_it: frozenset[int]) -> None:
        if number not in self.ignored:
            self.sent.add(number)
        if number not in reached_it and self.child.poll() is None:
            self.child.send(number)
