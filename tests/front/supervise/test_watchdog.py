"""The watchdog outside the program: slow is noted once, stuck is a hang only where a limit was given."""

import json
import os
import struct

import pytest

from torchsleuth.core.processes.tree import this_process
from torchsleuth.core.protocol.codec import to_json
from torchsleuth.front.supervise import program as supervise
from torchsleuth.front.supervise.program import _Watchdog


@pytest.fixture
def stuck(tmp_path, monkeypatch):
    """A process of ours that has been compiling one graph for ever, and a clock to turn."""
    folder = tmp_path / "p1"
    (folder / "g1").mkdir(parents=True)
    (folder / "process.json").write_text(
        json.dumps({"pid": os.getpid(), "identity": to_json(this_process()), "started": 0.0, "argv": []})
    )
    (folder / "g1" / "record.json").write_text(json.dumps({"level": "aot"}))
    (folder / "stacks.txt").write_text("Thread 1 (most recent call first):")
    (folder / "counters").write_bytes(struct.pack("<4Q", 0, 0, 1, 0))
    clock = [0.0]
    monkeypatch.setattr(supervise.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(supervise.os, "kill", lambda *_: None)
    return tmp_path, clock


def looks(watchdog, clock, seconds):
    notes, found = [], []
    for second in range(seconds):
        clock[0] = float(second * 10)
        hang = watchdog.look(notes.append)
        if hang is not None:
            found.append((second * 10, hang))
    return notes, found


def test_without_a_limit_a_slow_compile_is_noted_once_and_goes_on(stuck):
    spool, clock = stuck
    notes, found = looks(_Watchdog(spool, None, 0), clock, 100)
    assert found == []
    assert len(notes) == 1 and "it goes on" in notes[0] and "--timeout" in notes[0]


def test_with_a_limit_it_is_a_hang_of_the_graph_it_is_in(stuck):
    spool, clock = stuck
    _, found = looks(_Watchdog(spool, 60.0, 0), clock, 10)
    when, (_, failure) = found[0]
    assert when == 70
    assert failure.signature.kind == "hang" and failure.record.endswith("g1")
    assert failure.timeout == 60.0 and "most recent call first" in failure.traceback


def test_many_short_calls_are_no_hang(stuck):
    spool, clock = stuck
    watchdog = _Watchdog(spool, 60.0, 0)
    for count in range(1, 41, 2):
        (spool / "p1" / "counters").write_bytes(struct.pack("<4Q", 0, 0, count, 0))
        clock[0] += 30
        assert watchdog.look(lambda _: None) is None
