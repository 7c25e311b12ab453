"""The front as the search host sees it: orders come from it, and what is found and done is told to it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

from torchsleuth.core.protocol.frames import Frames, frame
from torchsleuth.core.protocol.steps import TO_HOST, Begins, Order, Says


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
