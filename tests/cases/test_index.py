"""The listing and its cache: right whatever happened to the cache."""

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from made import make

from torchsleuth.cases import index
from torchsleuth.cases.folder import list_cases, update_case, write_case
from torchsleuth.cases.model import Minified


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    for number in range(5):
        write_case(tmp_path, make(f"0000000{number}", created=f"2026-01-0{number + 1}T00:00:00.000000Z"), {})
    return tmp_path


def ids(cases: Path) -> list[str]:
    return [c.id for c in list_cases(cases)]


NEWEST_FIRST = ["00000004", "00000003", "00000002", "00000001", "00000000"]


def test_cases_are_listed_newest_first_and_the_index_appears(cases: Path) -> None:
    assert ids(cases) == NEWEST_FIRST
    assert (cases / "index.sqlite").is_file()


def test_a_second_listing_reads_no_case(cases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = list_cases(cases)
    monkeypatch.setattr(index, "read_case", lambda path: pytest.fail("a case was read"))
    assert list_cases(cases) == first


def test_folders_added_changed_and_removed_by_hand_are_noticed(cases: Path) -> None:
    list_cases(cases)
    shutil.rmtree(cases / "00000003")
    write_case(cases, make("00000009", created="2027-01-01T00:00:00.000000Z"), {})
    (folder,) = [c for c in list_cases(cases) if c.id == "00000000"]
    assert folder.minified_calls is None
    update_case(write_case(cases, make("00000000"), {}), minified=Minified(calls=1))
    assert ids(cases) == ["00000009", "00000004", "00000002", "00000001", "00000000"]
    assert list_cases(cases)[-1].minified_calls == 1
    with sqlite3.connect(cases / "index.sqlite") as db:
        assert db.execute("SELECT count(*) FROM cases").fetchone() == (5,)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b"not a database at all" * 100),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:5000]),
    ],
)
def test_a_missing_or_damaged_index_is_made_anew(cases: Path, damage: object) -> None:
    list_cases(cases)
    damage(cases / "index.sqlite")  # type: ignore[operator]
    assert ids(cases) == NEWEST_FIRST
    list_cases(cases)
    with sqlite3.connect(cases / "index.sqlite") as db:
        assert db.execute("SELECT count(*) FROM cases").fetchone() == (5,)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE cases SET doc = '{\"created\": 3}'",
        "UPDATE cases SET doc = '[]'",
        "UPDATE cases SET doc = x'ff'",
        "DROP TABLE cases",
        "DROP TABLE cases; CREATE TABLE cases (other TEXT)",
        "INSERT INTO cases VALUES ('../../x', 'stamp', '{}')",
        "PRAGMA user_version = 99",
    ],
)
def test_a_strangers_index_cannot_change_the_listing(cases: Path, statement: str) -> None:
    before = list_cases(cases)
    with sqlite3.connect(cases / "index.sqlite") as db:
        db.executescript(statement)
    assert list_cases(cases) == before


def test_an_index_locked_by_another_does_not_stop_the_listing(
    cases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "_PATIENCE", 0.05)
    list_cases(cases)
    write_case(cases, make("00000009", created="2027-01-01T00:00:00.000000Z"), {})
    db = sqlite3.connect(cases / "index.sqlite", isolation_level=None)
    db.execute("BEGIN EXCLUSIVE")
    try:
        assert ids(cases) == ["00000009", *NEWEST_FIRST]
    finally:
        db.close()


def test_a_folder_that_cannot_be_written_still_lists(cases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(cases_dir: Path, mode: str) -> object:
        return real(cases_dir, "ro")

    real = index._database
    monkeypatch.setattr(index, "_database", read_only)
    assert ids(cases) == NEWEST_FIRST
    assert not (cases / "index.sqlite").exists()


def test_unfinished_and_foreign_folders_are_not_cases(cases: Path) -> None:
    for name in (".00000007-abcd", "notes", "00000001.damaged-1", "../x"):
        (cases / name).mkdir(exist_ok=True)
    assert ids(cases) == NEWEST_FIRST


def test_a_folder_whose_name_is_not_its_id_is_shown_as_damaged(cases: Path) -> None:
    os.rename(cases / "00000004", cases / "0000000a")
    (damaged,) = [c for c in list_cases(cases) if c.error]
    assert damaged.id == "0000000a"
    assert "00000004" in (damaged.error or "")


def test_no_folder_means_no_cases_and_none_is_created(tmp_path: Path) -> None:
    assert list_cases(tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_listing_does_not_import_torch(cases: Path) -> None:
    code = "import sys; from torchsleuth.cases.folder import list_cases; list_cases(sys.argv[1]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(cases)], check=True)
