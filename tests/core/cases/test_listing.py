"""The listing: what lies in the folder, whoever put it there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from made import make
from torchsleuth.core.cases.folder import list_cases, update_case, write_case
from torchsleuth.core.cases.model import Minified


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    for number in range(5):
        write_case(tmp_path, make(f"0000000{number}", created=f"2026-01-0{number + 1}T00:00:00.000000Z"), {})
    return tmp_path


def ids(cases: Path) -> list[str]:
    return [c.id for c in list_cases(cases)]


NEWEST_FIRST = ["00000004", "00000003", "00000002", "00000001", "00000000"]


def test_cases_are_listed_newest_first_and_nothing_is_left_behind(cases: Path) -> None:
    before = sorted(os.listdir(cases))
    assert ids(cases) == NEWEST_FIRST
    assert sorted(os.listdir(cases)) == before


def test_folders_added_changed_and_removed_by_hand_are_noticed(cases: Path) -> None:
    list_cases(cases)
    shutil.rmtree(cases / "00000003")
    write_case(cases, make("00000009", created="2027-01-01T00:00:00.000000Z"), {})
    (folder,) = [c for c in list_cases(cases) if c.id == "00000000"]
    assert folder.minified_calls is None
    update_case(write_case(cases, make("00000000"), {}), minified=Minified(calls=1))
    assert ids(cases) == ["00000009", "00000004", "00000002", "00000001", "00000000"]
    assert list_cases(cases)[-1].minified_calls == 1


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
    code = "import sys; from torchsleuth.core.cases.folder import list_cases; list_cases(sys.argv[1]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(cases)], check=True)
