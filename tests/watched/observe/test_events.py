"""What collectors write and what is read back: bounded, per process, whole even where a process is killed."""

import os
from pathlib import Path

from torchsleuth.front.observe.events import read_events, was_cut
from torchsleuth.watched.observe.events import EventWriter, harmless


def test_what_is_written_is_read_in_order_with_the_process_that_wrote_it(tmp_path):
    events = EventWriter(str(tmp_path))
    events.write("frame", function="f")
    events.write("break", line=3)
    found = read_events(tmp_path)
    assert [e.kind for e in found if e.kind != "process"] == ["frame", "break"]
    assert {e.pid for e in found} == {os.getpid()}


def test_a_fork_writes_a_file_of_its_own(tmp_path):
    events = EventWriter(str(tmp_path))
    events.write("frame", who="parent")
    child = os.fork()
    if child == 0:
        events.write("frame", who="child")
        os._exit(0)
    os.waitpid(child, 0)
    events.write("frame", who="parent")
    found = [(e.fields["who"], e.pid) for e in read_events(tmp_path) if e.kind == "frame"]
    assert sorted(found) == sorted([("child", child), ("parent", os.getpid()), ("parent", os.getpid())])


def test_a_program_that_says_too_much_is_cut_and_told_so(tmp_path):
    events = EventWriter(str(tmp_path), most_bytes=2000)
    for number in range(1000):
        events.write("calls", graph=number)
    found = read_events(tmp_path)
    assert was_cut(found) and 10 < len(found) < 100
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3000


def test_a_line_without_an_end_and_one_that_is_no_event_are_left_out(tmp_path):
    EventWriter(str(tmp_path)).write("frame", function="f")
    (path,) = tmp_path.iterdir()
    with open(path, "a") as file:
        file.write('[1]\n{"at": 1}\n{"kind": "frame", "at": 2, "func')
    assert [e.kind for e in read_events(tmp_path) if e.kind != "process"] == ["frame"]


def test_values_that_json_does_not_know_and_long_ones_do_no_harm(tmp_path):
    events = EventWriter(str(tmp_path))
    events.write("break", value=object(), text="x" * (5 << 20))
    events.write("break", value=Path("a"))
    long, whole = [e for e in read_events(tmp_path) if e.kind != "process"]
    assert (long.kind, long.fields["of"]) == ("too_long", "break") and whole.fields == {"value": "a"}


def test_a_folder_that_is_gone_stops_nobody(tmp_path):
    events = EventWriter(str(tmp_path / "gone"))
    events.write("frame", function="f")
    assert read_events(tmp_path / "gone") == ()


def test_what_fails_in_a_collector_becomes_an_event(tmp_path):
    events = EventWriter(str(tmp_path))
    with harmless(events):
        raise ValueError("ours")
    assert [e.fields["error"] for e in read_events(tmp_path) if e.kind == "trouble"] == ["ValueError: ours"]
