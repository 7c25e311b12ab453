"""Any folder that a stranger could send, given to every verb that reads: it ends, says one thing, and harms nothing.

Hypothesis makes the folders: links, pipes, sockets, folders in place of files, sizes, encodings, types, forged marks.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from made import make
from torchsleuth.core.cases.model import Triage, Verified, Workaround
from torchsleuth.front.cli.main import main

PRIVATE = "the treasure is under the oak"
CASE = make(
    triage=Triage("inductor", "lowering", ("aten.erf.default",), "model.py:84", 1.2),
    verified=Verified(3, 3, True),
    workarounds=(Workaround("eager", "run it in eager", True),),
    kept={"by_value": 1, "by_spec": 2},
).to_json()
FILES = (
    "case.json",
    "record.json",
    "graph.py",
    "inputs.json",
    "original.py",
    "repro.py",
    "traceback.txt",
    ".lock",
)
NAMES = (
    *FILES,
    ".made-here",
    "inputs",
    "minify",
    "checkpoints",
    "inputs/storages/x.safetensors",
    "a\x1b[31mb",
)

TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["\x1b]0;x\x07", "\u202e", "[/red]", "[bold", "../../victim", "\ud800", "%s", "x" * 100_000, "~root"]
    ),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
SECTIONS = st.sampled_from([key for key, value in CASE.items() if isinstance(value, dict)])
CHANGES = st.one_of(
    st.tuples(st.sampled_from(sorted(CASE)), VALUES),
    st.tuples(
        SECTIONS, st.sampled_from(["calls", "summary", "ops", "seconds", "times", "flags", "message"]), VALUES
    ),
)
CONTENTS = st.one_of(
    st.binary(max_size=60),
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.sampled_from(
        [b"{" * 100_000, b"[" * 200_000, b"1e999", b"\xff\xfe{", b'{"schema": 1}', b"9" * 10_000]
    ),
)


def file(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def link(path: Path, _: bytes) -> None:
    path.symlink_to(path.parents[-1] / "nowhere" if len(_) % 2 else Path(os.environ["VICTIM"]))


def link_to_private_file(path: Path, _: bytes) -> None:
    path.symlink_to(Path(os.environ["VICTIM"]) / "diary.txt")


def pipe(path: Path, _: bytes) -> None:
    os.mkfifo(path)


def endpoint(path: Path, _: bytes) -> None:
    short = tempfile.mktemp(dir="/tmp")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as made:
        made.bind(short)
    os.rename(short, path)


def endless(path: Path, _: bytes) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path, _: bytes) -> None:
    with open(path, "wb") as made:
        made.truncate(1 << 40)


def folder(path: Path, _: bytes) -> None:
    path.mkdir()


def unreadable(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0)


SHAPES: list[Callable[[Path, bytes], None]] = [
    *(file, file, link, link_to_private_file, pipe, endpoint, endless, sparse, folder, unreadable),
]
PLANTS = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(SHAPES), CONTENTS), max_size=4)
BESIDE = st.lists(
    st.tuples(
        st.sampled_from([".spool", "index.sqlite", "index.sqlite-journal", "00000001", "records", "x.zip"]),
        st.sampled_from(SHAPES),
        CONTENTS,
    ),
    max_size=3,
    unique_by=lambda plant: plant[0],
)
VERBS = [
    ["list"],
    ["list", "--json"],
    ["show", "last"],
    ["show", "1a2b3c4d", "--json"],
    ["show", "CASES/1a2b3c4d"],
    ["show", "CASES/x.zip"],
    ["verify", "last"],
    ["verify", "CASES/1a2b3c4d/original.py"],
    ["triage", "1a2b3c4d"],
    ["analyze", "1a2b3c4d"],
    ["analyze", "1a2b3c4d", "--look"],
    ["minify", "1a2b3c4d"],
    ["workaround", "1a2b3c4d", "--program"],
    ["bisect", "1a2b3c4d", "--torch", "2.11..2.12"],
]


def planted(cases: Path, changes: list, plants: list, beside: list) -> None:
    doc = json.loads(json.dumps(CASE))
    for *where, key, value in changes:
        target = doc[where[0]] if where and isinstance(doc.get(where[0]), dict) else doc
        target[key] = value
    case = cases / "1a2b3c4d"
    case.mkdir(parents=True)
    (case / "case.json").write_text(json.dumps(doc))
    for name in ("original.py", "graph.py"):
        (case / name).write_text("open('/dev/null/executed')\n")
    for top, things in ((case, plants), (cases, beside)):
        for name, shape, content in things:
            path = top / name
            with contextlib.suppress(OSError):  # what was planted before may be in the way
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                shape(path, content)


def state_of(top: Path) -> dict[str, object]:
    found = {}
    for at, folders, files in os.walk(top):
        for name in [*folders, *files]:
            stat = os.lstat(os.path.join(at, name))
            found[os.path.join(at, name)] = (stat.st_mode, stat.st_size, stat.st_mtime_ns, stat.st_ino)
    return found


def run(words: list[str]) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        signal.alarm(30)
        try:
            status = main(words)
        finally:
            signal.alarm(0)
    return status, out.getvalue() + err.getvalue()


@pytest.fixture(autouse=True)
def waited_for_too_long():
    def late(*_: object) -> None:
        raise TimeoutError("a verb that reads waits for ever")

    before = signal.signal(signal.SIGALRM, late)
    yield
    signal.signal(signal.SIGALRM, before)


@given(st.lists(CHANGES, max_size=3), PLANTS, BESIDE)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_folder_of_a_strangers_harms_whoever_reads_it(changes: list, plants: list, beside: list) -> None:
    top = Path(tempfile.mkdtemp(prefix="sleuth-fuzz-"))
    os.environ["VICTIM"] = str(top / "victim")
    try:
        (top / "victim").mkdir()
        (top / "victim" / "diary.txt").write_text(PRIVATE)
        cases = top / "cases"
        planted(cases, changes, plants, beside)
        before = state_of(top)
        for verb in VERBS:
            words = [word.replace("CASES", str(cases)) for word in verb]
            status, said = run([*words, "--cases", str(cases)])
            assert status in (0, 1, 2), (verb, said)
            assert PRIVATE not in said, verb
            assert not any(char in said for char in "\x1b\x07\u202e\x9b"), (verb, said)
            assert state_of(top) == before, verb
            if verb[0] not in ("list", "show"):
                assert status == 2, (verb, said)
        target = top / "packed.zip"
        status, said = run(["pack", "1a2b3c4d", "-o", str(target), "--cases", str(cases)])
        assert status in (0, 2) and PRIVATE not in said
        assert not target.exists() or PRIVATE.encode() not in target.read_bytes()
        with contextlib.suppress(FileNotFoundError):
            target.unlink()
        assert state_of(top) == before
        status, said = run(["report", "1a2b3c4d", "-o", str(top / "out"), "--cases", str(cases)])
        assert status in (0, 2) and PRIVATE not in said, said
        written = [path.read_text() for path in (top / "out").glob("*")]
        assert len(written) == (2 if status == 0 else 0) and not any(PRIVATE in text for text in written)
        shutil.rmtree(top / "out", ignore_errors=True)
        assert state_of(top) == before
    finally:
        for path in top.rglob("*"):
            if not path.is_symlink():
                with contextlib.suppress(OSError):
                    path.chmod(0o700)
        shutil.rmtree(top)
