"""Reading what a watched process left: which compile or call it was in."""

import json
import struct

from hypothesis import given
from hypothesis import strategies as st

from torchsleuth.core.cases.spool import read_process, watched_processes

LEVELS = ("dynamo", "aot")


def leave(folder, counters, levels, **facts):
    folder.mkdir(parents=True)
    (folder / "process.json").write_text(json.dumps({"pid": 1, "started": 0.0, "argv": [], **facts}))
    (folder / "counters").write_bytes(struct.pack(f"<{len(counters)}Q", *counters))
    for number, level in enumerate(levels, start=1):
        (folder / f"g{number}").mkdir()
        (folder / f"g{number}" / "record.json").write_text(json.dumps({"level": level, "number": number}))
    return folder


@given(
    st.lists(st.tuples(st.sampled_from(LEVELS), st.integers(0, 9), st.integers(0, 9)), max_size=5),
    st.integers(0, 3),
)
def test_the_innermost_open_graph_is_where_the_process_is(tmp_path_factory, graphs, capture):
    folder = tmp_path_factory.mktemp("spool") / "p1"
    counters = [capture, 0] + [count for _, *both in graphs for count in both]
    where = read_process(leave(folder, counters, [level for level, *_ in graphs])).under_way()
    opened = [
        (level == "aot", number, phase)
        for number, (level, compiles, calls) in enumerate(graphs, start=1)
        for phase, count in (("compile", compiles), ("run", calls))
        if count % 2
    ]
    if opened:
        inner = max((aot, number) for aot, number, _ in opened)
        assert (where.record.name, where.phase) in {(f"g{n}", p) for a, n, p in opened if (a, n) == inner}
    elif capture % 2:
        assert (where.record, where.phase) == (None, "capture")
    else:
        assert where is None


def test_a_forked_child_finds_the_records_of_its_parent(tmp_path):
    parent = leave(tmp_path / "p1", [0, 0, 2, 2], ["aot"])
    child = leave(tmp_path / "p2", [0, 0, 2, 3], [], inherits=str(parent), started=1.0)
    where = read_process(child).under_way()
    assert (where.record, where.phase) == (parent / "g1", "run")
    assert [p.folder for p in watched_processes(tmp_path)] == [parent, child]


def test_a_graph_is_counted_once_however_often_its_process_forked(tmp_path):
    parent = leave(tmp_path / "p1", [0, 0, 2, 2], ["dynamo", "dynamo"])
    for number in range(2, 5):
        leave(tmp_path / f"p{number}", [0, 0], [], inherits=str(parent), started=float(number))
    assert sum(process.captured_graphs() for process in watched_processes(tmp_path)) == 2
