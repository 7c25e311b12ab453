"""`list` and `show` on a folder made by an attacker: nothing outside is read, nothing anywhere is changed, nothing hangs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from made import make
from torchsleuth.core.cases.folder import write_case
from torchsleuth.front.cli.main import main

LOOKS = [
    ["list"],
    ["list", "--json"],
    ["show", "last"],
    ["show", "1a2b3c4d"],
    ["show", "1a2b3c4d", "--json"],
]


@contextlib.contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """A look that waits for somebody else for ever is ended, and fails the test."""

    def late(*_: object) -> None:
        raise TimeoutError(f"still looking after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def snapshot(top: Path) -> dict[str, object]:
    """Everything below a folder that a look could have changed; links are not followed."""
    found: dict[str, object] = {}
    for folder, folders, files in os.walk(top):
        for name in [*folders, *files]:
            path = os.path.join(folder, name)
            stat = os.lstat(path)
            content = b""
            if os.path.isfile(path) and not os.path.islink(path) and stat.st_size < 1 << 20:
                content = Path(path).read_bytes()
            found[path] = (stat.st_mode, stat.st_size, stat.st_mtime_ns, stat.st_ino, content)
    return found


def look(words: list[str], cases: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with at_most(20):
        status = main([*words, "--cases", str(cases)])
    said = capsys.readouterr()
    return status, said.out + said.err


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with something private in it, beside the cases."""
    private = tmp_path / "victim" / "p1"
    private.mkdir(parents=True)
    (private / "diary.txt").write_text("the treasure is under the oak")
    (private / "process.json").write_text(json.dumps({"pid": 2**22 + 1, "started": 0.0, "argv": []}))
    return tmp_path


def spool_link(cases: Path) -> None:
    cases.mkdir()
    (cases / ".spool").symlink_to("../victim")


def spool_with_links(cases: Path) -> None:
    spool = cases / ".spool" / "20260101-000000-abcdef" / "p1"
    spool.mkdir(parents=True)
    (spool / "process.json").write_text(json.dumps({"pid": 2**22 + 1, "started": 0.0, "argv": []}))
    failure = {
        "record": str(cases.parent / "victim"),
        "signature": make().signature.to_json(),
        "traceback": "",
        "time": 0.0,
    }
    (spool / "failure-1.json").write_text(json.dumps(failure))


def malformed_spool(cases: Path) -> None:
    spool = cases / ".spool" / "x" / "p1"
    spool.mkdir(parents=True)
    (spool / "process.json").write_text("[")
    (cases / ".spool" / "y").mkdir()
    (cases / ".spool" / "y" / "supervisor").write_text("many")


def journal(cases: Path) -> None:
    """A hot journal that names another file as its master: SQLite deletes that file when it rolls back."""
    write_case(cases, make(), {})
    index = cases / "index.sqlite"
    with contextlib.closing(sqlite3.connect(index)) as db:
        db.execute("CREATE TABLE cases (id TEXT PRIMARY KEY, stamp TEXT, doc TEXT)")
        db.commit()
    named = os.fsencode(cases.parent / "victim" / "p1" / "diary.txt")
    magic = bytes.fromhex("d9d505f920a163d7")
    head = magic + struct.pack(">iiiii", 0, 0, 1, 512, 4096)
    tail = (
        struct.pack(">I", 2**30 // 4096 + 1)
        + named
        + struct.pack(">II", len(named), sum(struct.unpack(f"{len(named)}b", named)) & 0xFFFFFFFF)
        + magic
    )
    (cases / "index.sqlite-journal").write_bytes(head.ljust(512, b"\0") + tail)


def linked_case(cases: Path) -> None:
    real = write_case(cases.parent / "other", make(), {}).path
    cases.mkdir()
    (cases / "1a2b3c4d").symlink_to(real)


def linked_document(cases: Path) -> None:
    folder = write_case(cases, make(), {}).path
    (cases.parent / "victim" / "case.json").write_text((folder / "case.json").read_text())
    (folder / "case.json").unlink()
    (folder / "case.json").symlink_to("../../victim/case.json")


def pipe(cases: Path) -> None:
    folder = write_case(cases, make(), {}).path
    (folder / "case.json").unlink()
    os.mkfifo(folder / "case.json")


def device(cases: Path) -> None:
    folder = write_case(cases, make(), {}).path
    (folder / "case.json").unlink()
    (folder / "case.json").symlink_to("/dev/zero")


def pipes_everywhere(cases: Path) -> None:
    folder = write_case(cases, make(), {}).path
    for name in ("repro.py", "record.json", "graph.py"):
        os.mkfifo(folder / name)
    os.mkfifo(cases / "index.sqlite")
    os.mkfifo(cases / ".spool")


def endless_number(cases: Path) -> None:
    folder = write_case(cases, make(), {}).path
    text = (folder / "case.json").read_text().replace('"error": null', '"error": null, "x": 1e999', 1)
    (folder / "case.json").write_text(text)


@pytest.mark.parametrize(
    "attack",
    [
        spool_link,
        spool_with_links,
        malformed_spool,
        journal,
        linked_case,
        linked_document,
        pipe,
        device,
        pipes_everywhere,
        endless_number,
    ],
)
def test_looking_changes_nothing_and_ends(
    attack, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = tmp_path / "cases"
    attack(cases)
    before = snapshot(tmp_path)
    for words in LOOKS:
        status, said = look(words, cases, capsys)
        assert status in (0, 2), said
        assert "internal error" not in said and "under the oak" not in said
        assert snapshot(tmp_path) == before, words


def test_a_case_behind_a_link_is_not_shown(home: Path, tmp_path: Path, capsys) -> None:
    linked_case(tmp_path / "cases")
    assert look(["show", "1a2b3c4d"], tmp_path / "cases", capsys)[0] == 2
    assert json.loads(look(["list", "--json"], tmp_path / "cases", capsys)[1]) == []


def test_a_damaged_case_costs_one_line(home: Path, tmp_path: Path, capsys) -> None:
    pipe(tmp_path / "cases")
    write_case(tmp_path / "cases", make("00000001"), {})
    listed = json.loads(look(["list", "--json"], tmp_path / "cases", capsys)[1])
    assert {case["id"]: case["kind"] for case in listed} == {
        "1a2b3c4d": "damaged",
        "00000001": "compile_error",
    }


@pytest.mark.parametrize("name", ["[/red]x", "[bold", "a\x1b[31mb", "a\udcffb"])
def test_a_folder_with_markup_or_escapes_in_its_name_is_only_a_name(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = tmp_path / name
    for wanted in (["list"], ["show"], ["show", name]):
        status, said = look(wanted, cases, capsys)
        assert status in (0, 2) and "\x1b" not in said and "internal error" not in said
    write_case(cases, make(), {"original.py": ""})
    for wanted in (["list"], ["show"], ["show", str(cases / "1a2b3c4d")]):
        status, said = look(wanted, cases, capsys)
        assert status == 0 and "\x1b" not in said, said


def test_escape_sequences_of_a_case_do_not_reach_the_terminal(tmp_path: Path, capsys) -> None:
    bad = "\x1b]0;owned\x07\x1b[2J\u202e"
    folder = write_case(tmp_path, make(no_repro=bad, backend=bad, script=(bad,)), {})
    for words in LOOKS:
        _, said = look(words, tmp_path, capsys)
        assert "\x1b" not in said and "\u202e" not in said
    folder.file("case.json").write_text('{"schema": 1, "' + bad.replace("\x1b", "\\u001b") + '": ')
    for words in [*LOOKS, ["verify"], ["minify", bad], ["triage", bad], ["workaround", bad]]:
        status, said = look(words, tmp_path, capsys)
        assert "\x1b" not in said and "\u202e" not in said
        assert status in (0, 2)


@pytest.mark.parametrize(
    "large",
    [
        {"graph": {"calls": 1, "inputs": 1, "source_lines": ["model.py:84"] * 900_000}},
        {"no_repro": "x" * 14_000_000},
        {"backend": "\u202e" * 2_000_000},
        {"of_the_future": list(range(1_600_000))},
    ],
)
def test_a_legal_case_of_fourteen_megabytes_is_shown_at_once(large: dict, tmp_path: Path, capsys) -> None:
    folder = write_case(tmp_path, make(), {})
    text = json.dumps({**json.loads(folder.file("case.json").read_text()), **large})
    folder.file("case.json").write_text(text)
    started = time.process_time()
    status, said = look(["show", "last"], tmp_path, capsys)
    assert status == 0 and len(said) < 20_000
    assert (
        time.process_time() - started < 5
    )  # of the processor's, whoever else uses it; the minute it took was 60


def test_a_thousand_cases_are_listed_in_a_moment(tmp_path: Path, capsys) -> None:
    text = write_case(tmp_path, make("00000000"), {}).file("case.json").read_text()
    for number in range(1, 1000):
        (tmp_path / f"{number:08x}").mkdir()
        (tmp_path / f"{number:08x}" / "case.json").write_text(text.replace("00000000", f"{number:08x}", 1))
    started = time.process_time()
    _, said = look(["list", "--json"], tmp_path, capsys)
    assert len(json.loads(said)) == 1000
    assert time.process_time() - started < 5
