"""Cases that go from one person to another: packed without what is private, looked at safely, executed only when agreed."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path

import pytest

from made import make
from torchsleuth.core.cases.door import changed_since
from torchsleuth.core.cases.errors import CaseInUse
from torchsleuth.core.cases.folder import open_case, update_case, working_on, write_case
from torchsleuth.front.cli.main import main

ORIGINAL = "import pathlib\npathlib.Path(__file__).with_name('executed').touch()\n"


def say(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str]:
    status = main([str(word) for word in words])
    said = capsys.readouterr()
    return status, said.out + said.err


@pytest.fixture
def cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A case as a run leaves it, with things that are nobody else's business."""
    monkeypatch.setenv("HOME", "/home/ada")
    record = {"level": "aot", "program": {"command": ["python", "train.py"], "cwd": "/work/secret-project"}}
    files = {
        "original.py": f"D = '/home/ada/data'\n{ORIGINAL}",
        "record.json": json.dumps(record),
        "graph.py": "x = 1\n",
    }
    folder = write_case(tmp_path / "cases", make(extra={"program": record["program"]}), files)
    (folder.path / "minify").mkdir()
    (folder.path / "minify" / "kernel.so").write_bytes(b"\0")
    (folder.path / "diary").symlink_to("/etc/hostname")
    (folder.path / "inputs" / "storages").mkdir(parents=True)
    (folder.path / "inputs" / "storages" / "ab.safetensors").write_bytes(b"\xff\x00")
    return tmp_path / "cases"


def test_a_packed_case_is_one_file_with_a_list_of_what_is_in_it_and_what_is_not(
    cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = tmp_path / "shared.zip"
    status, said = say(capsys, "pack", "last", "--cases", cases, "-o", packed)
    assert status == 0
    with zipfile.ZipFile(packed) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    names = {name.removeprefix("1a2b3c4d/") for name in held}
    assert names == {
        *(
            "CONTENTS.txt",
            "case.json",
            "graph.py",
            "original.py",
            "record.json",
            "inputs/storages/ab.safetensors",
        ),
    }
    everything = b"".join(held.values())
    assert b"/home/ada" not in everything and b"secret-project" not in everything
    for word in ("original.py", "minify/", "work files", "diary", "how and where the program was started"):
        assert word in said and word in held["1a2b3c4d/CONTENTS.txt"].decode()


def test_a_packed_case_is_shown_without_being_unpacked_and_unpacked_on_demand(
    cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = tmp_path / "shared.zip"
    say(capsys, "pack", "--cases", cases, "-o", packed)
    there = tmp_path / "there"
    status, said = say(capsys, "show", packed, "--cases", there)
    assert status == 0 and "bad size #" in said and "unpack" in said
    assert not there.exists()
    assert say(capsys, "unpack", packed, "--cases", there)[0] == 0
    assert open_case(there, "last").text("graph.py") == "x = 1\n"
    assert os.stat(there / "1a2b3c4d").st_mode & 0o777 == 0o700
    assert say(capsys, "unpack", packed, "--cases", there)[0] == 2
    assert changed_since(there / "1a2b3c4d", "1a2b3c4d") is None


@pytest.mark.parametrize(
    "names",
    [
        ["1a2b3c4d/case.json", "1a2b3c4d/../../evil"],
        ["1a2b3c4d/case.json", "/etc/evil"],
        ["1a2b3c4d/case.json", "1a2b3c4d/.made-here"],
        ["1a2b3c4d/case.json", "1a2b3c4d/minify/kernel.so"],
        ["1a2b3c4d/case.json", "00000000/case.json"],
        ["case.json"],
        ["00000000/case.json"],
        ["1a2b3c4d/graph.py"],
        [],
    ],
)
def test_a_strangers_archive_writes_nothing_outside_and_brings_no_trust(
    names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = tmp_path / "evil.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for name in names:
            archive.writestr(name, json.dumps(make().to_json()) if name.endswith("case.json") else "x")
    for words in (("show", packed), ("unpack", packed)):
        status, said = say(capsys, *words, "--cases", tmp_path / "cases")
        assert status == 2 and "internal error" not in said
    assert sorted(os.listdir(tmp_path)) in (["cases", "evil.zip"], ["evil.zip"])
    assert not (tmp_path / "cases").exists() or os.listdir(tmp_path / "cases") == []


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04", b"not a zip"])
def test_a_damaged_archive_is_one_sentence(damage: bytes, tmp_path: Path, capsys) -> None:
    (tmp_path / "x.zip").write_bytes(damage)
    assert say(capsys, "show", tmp_path / "x.zip")[0] == 2
    assert say(capsys, "unpack", tmp_path / "x.zip", "--cases", tmp_path / "c")[0] == 2


def test_an_archive_that_unfolds_without_end_is_refused(tmp_path: Path, capsys, monkeypatch) -> None:
    from torchsleuth.core.cases import packing

    monkeypatch.setattr(packing, "MOST_BYTES", 1 << 20)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("1a2b3c4d/case.json", json.dumps(make().to_json()))
        archive.writestr("1a2b3c4d/inputs/x", b"\0" * (8 << 20))
    status, said = say(capsys, "unpack", tmp_path / "bomb.zip", "--cases", tmp_path / "cases")
    assert status == 2 and "larger" in said
    assert os.listdir(tmp_path / "cases") == []


@pytest.mark.parametrize(
    "verb", [["verify"], ["triage"], ["minify"], ["workaround"], ["bisect", "--torch", "2.11..2.12"]]
)
def test_a_case_from_elsewhere_is_not_executed_before_someone_agrees(
    verb: list[str], cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there"
    shutil.copytree(cases, there, symlinks=True)
    for wanted in ("last", there / "1a2b3c4d", there / "1a2b3c4d" / "original.py"):
        if verb == ["triage"] and str(wanted).endswith(".py"):
            continue  # there a script is a program of the person's
        status, said = say(capsys, verb[0], wanted, *verb[1:], "--cases", there)
        assert status == 2 and "was not made here" in said and "--yes" in said
    assert not (there / "1a2b3c4d" / "executed").exists()


def test_agreeing_once_is_enough(cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "there"
    shutil.copytree(cases, there, symlinks=True)
    assert changed_since(cases / "1a2b3c4d", "1a2b3c4d") == ()
    assert changed_since(there / "1a2b3c4d", "1a2b3c4d") is None
    verify = ("verify", "last", "--times", "1", "--cases", there)
    status, said = say(capsys, *verify, "--yes")
    assert status == 1 and "was not made here" in said
    assert (there / "1a2b3c4d" / "executed").exists()
    status, said = say(capsys, *verify)
    assert status == 1 and "was not made here" not in said


def test_a_case_that_was_changed_after_it_was_made_is_asked_about(cases: Path, capsys) -> None:
    """Whoever may write into the folder would otherwise have a script executed that nobody has read."""
    folder = open_case(cases, "last")
    (folder.path / "original.py").write_text(ORIGINAL + "# changed\n")
    verify = ("verify", "last", "--times", "1", "--cases", cases)
    status, said = say(capsys, *verify)
    assert status == 2 and "was changed after it was written (original.py)" in said
    assert not (folder.path / "executed").exists()
    update_case(
        folder, {"graph.py": "x = 2\n"}
    )  # what we write ourselves is ours, and vouches for nothing else
    assert changed_since(folder.path, "1a2b3c4d") == ("original.py",)
    assert say(capsys, *verify, "--yes")[0] == 1
    assert say(capsys, *verify)[0] == 1


def test_a_planted_file_is_a_change(cases: Path, capsys) -> None:
    (cases / "1a2b3c4d" / "repro.py").write_text(ORIGINAL)
    status, said = say(capsys, "verify", "last", "--cases", cases)
    assert status == 2 and "(repro.py)" in said and not (cases / "1a2b3c4d" / "executed").exists()


@pytest.mark.parametrize("number", ["1e400", "-1e400", "1" + "0" * 400, "-1" + "0" * 400, "1" * 5000])
@pytest.mark.parametrize("verb", ["show", "report", "pack"])
def test_a_number_beyond_all_numbers_is_one_sentence(verb: str, number: str, cases: Path, capsys) -> None:
    path = cases / "1a2b3c4d" / "case.json"
    text = path.read_text()
    assert '"seen": 1' in text
    path.write_text(text.replace('"seen": 1', f'"seen": {number}'))
    status, said = say(capsys, verb, "last", "--cases", cases)
    assert status == 2 and "internal error" not in said and len(said) < 600, said


def test_an_archive_whose_lzma_is_damaged_is_one_sentence(tmp_path: Path, capsys) -> None:
    packed = tmp_path / "x.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("1a2b3c4d/case.json", json.dumps(make().to_json()) * 3)
    raw = bytearray(packed.read_bytes())
    at = raw.index(b"case.json") + 40
    raw[at : at + 60] = bytes(60)
    packed.write_bytes(raw)
    for verb in ("show", "unpack"):
        status, said = say(capsys, verb, packed, "--cases", tmp_path / "c")
        assert status == 2 and "internal error" not in said


def test_of_paths_outside_the_home_folder_only_the_end_leaves(tmp_path: Path, capsys) -> None:
    files = {
        "traceback.txt": 'File "/data/team7/net/model.py", line 3\n'
        'File "/opt/venvs/x9/lib/python3.12/site-packages/torch/_inductor/lowering.py", line 12\n'
        "kernels in /scratch/user77/cache/kernels/a.so; see https://example.com/data/team7/x\n",
        "record.json": json.dumps({"files": ["/data/team7/net/parts/block.py"]}),
        "original.py": "# of /data/team7/net/model.py\nW = '/scratch/user77/w.pt'\nx = 8 /2/ 1\n",
    }
    write_case(tmp_path / "cases", make(script=("/data/team7/net/train.py",)), files)
    packed = tmp_path / "shared.zip"
    status, said = say(capsys, "pack", "last", "--cases", tmp_path / "cases", "-o", packed)
    assert status == 0 and "paths of the machine" in said
    with zipfile.ZipFile(packed) as archive:
        held = {name[9:]: archive.read(name).decode() for name in archive.namelist()}
    for word in ("team7/net", "user77", "venvs"):
        assert not any(word in text for name, text in held.items() if name != "CONTENTS.txt"), word
    assert (
        '"model.py", line 3' in held["traceback.txt"]
        and '"torch/_inductor/lowering.py"' in held["traceback.txt"]
    )
    assert "https://example.com/data/team7/x" in held["traceback.txt"]
    assert json.loads(held["record.json"])["files"] == ["parts/block.py"]
    assert "W = 'w.pt'" in held["original.py"] and "x = 8 /2/ 1" in held["original.py"]


def test_the_failure_of_a_run_does_not_take_over_a_planted_case(cases: Path, tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    shutil.copytree(cases, planted, symlinks=True)
    made = write_case(planted, make(), {"original.py": "mine"})
    assert made.case.seen == 1 and made.text("original.py") == "mine"
    (aside,) = planted.glob("1a2b3c4d.from-elsewhere-*")
    assert "executed" in (aside / "original.py").read_text()


def test_two_do_not_work_on_one_case_at_a_time(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = open_case(cases, "last")
    with working_on(folder):
        with pytest.raises(CaseInUse), working_on(folder):
            pass
        status, said = say(capsys, "minify", "last", "--cases", cases)
        assert status == 2 and "Another torchsleuth is working" in said
    with working_on(folder):
        pass
