"""Left-overs of programs that died: adopted only where they are this user's, of this machine, and really dead."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchsleuth.core.cases.folder import list_cases
from torchsleuth.core.cases.spool import read_process
from torchsleuth.core.processes.tree import end_all, started_at, this_process
from torchsleuth.core.protocol.codec import to_json
from torchsleuth.front.supervise.leftovers import OWNER, adopt_leftovers, leftover_spools, new_spool

HERE = this_process()
# A number that no process has: the largest there is, by default.
DEAD = dataclasses.replace(HERE, pid=2**22, started=1)


def leave(cases: Path, identity=DEAD, name: str = "20260101-000000-abcdef", **facts: object) -> Path:
    """The spool of a program that died while it ran a compiled graph."""
    process = cases / ".spool" / name / "p1"
    (process / "g1").mkdir(parents=True)
    known = {
        "pid": identity.pid,
        "identity": to_json(identity),
        "started": 0.0,
        "argv": ["x.py"],
        "python": "3",
    }
    (process / "process.json").write_text(json.dumps({**known, **facts}))
    (process / "counters").write_bytes(struct.pack("<4Q", 0, 0, 2, 1))
    record = {
        "level": "aot",
        "number": 1,
        "hash": "h",
        "no_repro": "it is made up",
        "versions": {"torch": "2"},
    }
    (process / "g1" / "record.json").write_text(json.dumps(record))
    (process / "g1" / "graph.py").write_text("")
    (process.parent / OWNER).write_text(json.dumps(to_json(identity)))
    return process.parent


def test_what_a_dead_program_of_ours_left_becomes_a_case_and_is_cleared_away(tmp_path: Path) -> None:
    spool, said = leave(tmp_path), []
    (adopted,) = adopt_leftovers(tmp_path, said.append)
    assert (adopted.case.kind, adopted.case.phase) == ("crash", "run")
    assert not spool.exists() and adopted.case.id in said[0]


@pytest.mark.parametrize(
    "elsewhere",
    [{"host": "another"}, {"boot": "another"}, {"namespace": "pid:[1]"}, {"user": os.getuid() + 1}],
)
def test_what_belongs_elsewhere_is_left_alone(tmp_path: Path, elsewhere: dict) -> None:
    spool = leave(tmp_path, dataclasses.replace(DEAD, **elsewhere))
    assert adopt_leftovers(tmp_path, print) == [] and spool.exists()


def test_a_running_program_is_left_alone_and_another_with_its_number_is_not_it(tmp_path: Path) -> None:
    spool = leave(tmp_path, HERE)
    assert read_process(spool / "p1").is_alive
    assert adopt_leftovers(tmp_path, print) == [] and spool.exists()
    reused = leave(tmp_path, dataclasses.replace(HERE, started=HERE.started - 1), "20260101-000000-000000")
    assert not read_process(reused / "p1").is_alive
    assert leftover_spools(tmp_path) == [reused]


@pytest.mark.parametrize("name", ["notes", "watch-x", "20260101-000000-abcdefg", "..."])
def test_a_folder_of_another_shape_is_left_alone(tmp_path: Path, name: str) -> None:
    spool = leave(tmp_path, name=name)
    assert adopt_leftovers(tmp_path, print) == [] and spool.exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    victim = leave(tmp_path / "victim")
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / ".spool").symlink_to(victim.parent)
    (tmp_path / "other" / ".spool").mkdir(parents=True)
    (tmp_path / "other" / ".spool" / victim.name).symlink_to(victim)
    for cases in (tmp_path / "cases", tmp_path / "other"):
        assert adopt_leftovers(cases, print) == []
    assert (victim / "p1" / "process.json").exists()


@pytest.mark.parametrize(
    "report",
    [
        "[",
        "{}",
        '{"signature": {"kind": "crash", "phase": "run"}, "traceback": "", "time": 1, "record": "/etc"}',
        '{"signature": {"kind": "crash", "phase": "run"}, "traceback": "", "time": 1, "record": 7}',
        '{"signature": 7, "traceback": "", "time": 1}',
    ],
)
def test_a_malformed_report_costs_one_line_and_nothing_is_lost(tmp_path: Path, report: str) -> None:
    spool, said = leave(tmp_path), []
    (spool / "p1" / "failure-1.json").write_text(report)
    leave(tmp_path, name="20260101-000000-000000")
    assert len(adopt_leftovers(tmp_path, said.append)) == 1
    assert spool.exists() and len(said) == 2 and len(list_cases(tmp_path)) == 1


def test_ancestors_in_a_circle_come_to_an_end(tmp_path: Path) -> None:
    spool = leave(tmp_path, inherits="p2")
    other = leave(tmp_path, name="20260101-000000-000001", inherits="p1") / "p1"
    os.rename(other, spool / "p2")
    assert len(read_process(spool / "p1").graph_folders()) <= 200


def test_a_new_spool_is_for_this_user_alone_and_never_behind_a_link(tmp_path: Path) -> None:
    spool = new_spool(tmp_path / "cases")
    assert spool.stat().st_mode & 0o777 == 0o700
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap" / ".spool").symlink_to(tmp_path)
    with pytest.raises(Exception, match="not a folder of yours"):
        new_spool(tmp_path / "trap")


def test_only_the_process_that_was_meant_is_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert started_at(child.pid) > 0
        end_all([child.pid], 5.0)
        assert child.wait(5) == -signal.SIGTERM
    finally:
        child.kill()
    time.sleep(0)
    assert started_at(2**22) == 0
