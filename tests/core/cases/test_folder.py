"""Case folders: written whole, found again, counted, updated, and refused with a sentence."""

import dataclasses
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made import make
from torchsleuth.core.cases.errors import (
    AmbiguousCase,
    CaseError,
    CaseNotFound,
    DamagedCase,
    DiskFull,
    NewerSchema,
    NotWritable,
    SleuthError,
)
from torchsleuth.core.cases.folder import list_cases, now, open_case, update_case, write_case
from torchsleuth.core.cases.model import Triage, Verified, Workaround, case_from_json, case_id

FULL = make(
    triage=Triage("inductor", "lowering", ("aten.erf.default",), "model.py:84", 1.2),
    verified=Verified(3, 3, True),
    workarounds=(Workaround("eager", "run it in eager", True),),
    rank="1",
    script=("train.py", "--lr", "1"),
    kept={"integers": "by value"},
)


def test_a_case_survives_json_and_names_every_key_of_the_contract() -> None:
    doc = json.loads(json.dumps(FULL.to_json()))
    assert case_from_json(doc) == FULL
    contract = (
        "schema id created torch device kind phase direction backend after signature graph triage minified"
    )
    assert set(contract.split()) | {"verified", "workarounds", "error"} <= doc.keys()
    assert doc["signature"]["summary"] == "ValueError: bad size #"
    assert doc["minified"] is None


def test_keys_of_a_later_torchsleuth_are_tolerated_and_kept() -> None:
    doc = {**FULL.to_json(), "later": {"x": [1]}}
    assert case_from_json(doc).to_json()["later"] == {"x": [1]}


@pytest.mark.parametrize(
    "change",
    [
        {"id": "../../etc"},
        {"id": 7},
        {"kind": "surprise"},
        {"seen": "twice"},
        {"seen": True},
        {"graph": {"calls": "12", "inputs": 3}},
        {"graph": {"calls": 12}},
        {"script": "train.py"},
        {"signature": None},
        {"signature": {"kind": 1, "phase": "run"}},
        {"workarounds": [{"name": "x"}]},
        {"schema": "1"},
        {"schema": 0},
    ],
)
def test_wrong_types_and_missing_keys_are_damage(change: dict) -> None:
    with pytest.raises(DamagedCase) as caught:
        case_from_json({**FULL.to_json(), **change})
    assert caught.value.exit_status == 2


def test_a_missing_key_is_named() -> None:
    doc = FULL.to_json()
    del doc["backend"]
    with pytest.raises(DamagedCase, match="'backend' is missing"):
        case_from_json(doc)


def test_a_newer_schema_says_how_to_go_on() -> None:
    with pytest.raises(NewerSchema, match="upgrade"):
        case_from_json({**FULL.to_json(), "schema": 2})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(st.sampled_from(sorted(FULL.to_json())), JSON))
@settings(max_examples=300)
def test_any_document_is_a_case_or_refused_with_our_own_error(change: dict) -> None:
    try:
        case = case_from_json({**FULL.to_json(), **change})
    except CaseError:
        return
    assert case_from_json(json.loads(json.dumps(case.to_json()))) == case


def test_an_id_depends_on_failure_and_graph() -> None:
    ids = {
        case_id("f", "g"),
        case_id("f", "h"),
        case_id("e", "g"),
        case_id("f", "g", "0"),
        case_id("f", "g", "1"),
    }
    assert len(ids) == 5
    assert all(len(i) == 8 for i in ids)


def test_a_case_is_written_with_its_files_and_read_back(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "deep").mkdir(parents=True)
    (store / "deep" / "t.bin").write_bytes(b"123")
    (tmp_path / "log").write_text("hello")
    folder = write_case(
        tmp_path / "cases", FULL, {"graph.py": "x = 1\n", "inputs": store, "log.txt": tmp_path / "log"}
    )
    assert folder.path == tmp_path / "cases" / FULL.id
    assert folder.case == dataclasses.replace(FULL, last_seen=FULL.created)
    assert folder.file("graph.py").read_text() == "x = 1\n"
    assert folder.file("inputs/deep/t.bin").read_bytes() == b"123"
    assert folder.file("log.txt").read_text() == "hello"
    assert os.listdir(tmp_path / "cases") == [FULL.id]
    assert open_case(tmp_path / "cases", FULL.id).case == folder.case


def test_ranks_that_fail_the_same_way_are_one_case(tmp_path: Path) -> None:
    for rank in ("10", "2", "2", "0"):
        folder = write_case(tmp_path, make(rank=rank), {})
    assert (folder.case.rank, folder.case.seen) == ("0, 2, 10", 4)
    assert folder.case.on_ranks == " on ranks 0, 2, 10"


def test_the_same_failure_again_is_counted_and_its_files_stay(tmp_path: Path) -> None:
    write_case(tmp_path, FULL, {"graph.py": "first"})
    again = write_case(
        tmp_path, dataclasses.replace(FULL, last_seen="2027-01-01T00:00:00Z"), {"graph.py": "second"}
    )
    assert (again.case.seen, again.case.last_seen) == (2, "2027-01-01T00:00:00Z")
    assert again.file("graph.py").read_text() == "first"
    assert [c.seen for c in list_cases(tmp_path)] == [2]


def test_a_damaged_case_in_the_way_is_set_aside_not_deleted(tmp_path: Path) -> None:
    (tmp_path / FULL.id).mkdir()
    (tmp_path / FULL.id / "case.json").write_text("{")
    (tmp_path / FULL.id / "graph.py").write_text("precious")
    assert write_case(tmp_path, FULL, {}).case.seen == 1
    (aside,) = tmp_path.glob(f"{FULL.id}.damaged-*")
    assert (aside / "graph.py").read_text() == "precious"


def test_several_processes_may_see_the_same_failure_at_once(tmp_path: Path) -> None:
    doc = tmp_path / "doc.json"
    doc.write_text(json.dumps(FULL.to_json()))
    code = (
        "import json, sys; from torchsleuth.core.cases.folder import *; from torchsleuth.core.cases.model import case_from_json\n"
        "case = case_from_json(json.load(open(sys.argv[1])))\n"
        "for _ in range(10): write_case(sys.argv[2], case, {'graph.py': 'x'}); list_cases(sys.argv[2])"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(doc), str(tmp_path / "cases")]) for _ in range(4)
    ]
    assert [p.wait(60) for p in running] == [0, 0, 0, 0]
    assert open_case(tmp_path / "cases", "last").case.seen == 40


def test_sections_are_added_and_what_others_wrote_meanwhile_stays(tmp_path: Path) -> None:
    folder = write_case(tmp_path, make(), {})
    doc = json.loads(folder.file("case.json").read_text())
    doc["later"] = 1
    folder.file("case.json").write_text(json.dumps(doc))
    update_case(folder, triage=Triage("inductor"))
    updated = update_case(
        folder, files={"repro.py": "pass"}, verified=Verified(3, 2, False), extra={"run": "r1"}
    )
    assert updated.case.triage == Triage("inductor")
    assert updated.case.verified == Verified(3, 2, False)
    assert updated.case.extra == {"later": 1, "run": "r1"}
    assert json.loads(folder.file("case.json").read_text())["later"] == 1
    assert folder.file("repro.py").read_text() == "pass"


def test_an_unknown_section_is_refused(tmp_path: Path) -> None:
    folder = write_case(tmp_path, make(), {})
    for section in ({"triaged": 1}, {"id": "00000000"}):
        with pytest.raises(TypeError):
            update_case(folder, **section)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", "a\\b"])
def test_a_file_cannot_be_put_outside_its_case(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not a relative path"):
        write_case(tmp_path / "cases", make(), {name: "x"})
    assert os.listdir(tmp_path / "cases") == []


def test_a_case_is_named_by_id_prefix_path_or_last(tmp_path: Path) -> None:
    one = write_case(tmp_path, make("1a2b3c4d"), {"original.py": ""})
    two = write_case(tmp_path, make("1a99ffff", created=now()), {})
    assert open_case(tmp_path, "1a2").path == one.path
    assert open_case(tmp_path, "1A2B3C4D").path == one.path
    assert open_case(tmp_path, "last").path == two.path
    assert open_case("elsewhere", str(one.path)).path == one.path
    assert open_case("elsewhere", str(one.file("original.py"))).path == one.path
    with pytest.raises(AmbiguousCase, match="more digits"):
        open_case(tmp_path, "1a")


@pytest.mark.parametrize("wanted", ["ffff", "", "last", "../..", "x" * 5000, "a\0b", "/no/such/folder"])
def test_a_name_without_a_case_is_told_so(tmp_path: Path, wanted: str) -> None:
    with pytest.raises(SleuthError) as caught:
        open_case(tmp_path / "cases", wanted)
    assert isinstance(caught.value, CaseNotFound | DamagedCase)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "\xff",
        '{"schema": NaN}',
        "[" * 100_000,
        '{"schema": 1' + "0" * 5000 + "}",
        '{"schema": 1}',
    ],
)
def test_a_hostile_or_damaged_file_is_one_sentence(tmp_path: Path, text: str) -> None:
    folder = write_case(tmp_path, make(), {})
    folder.file("case.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CaseError) as caught:
        open_case(tmp_path, folder.case.id)
    assert caught.value.exit_status == 2
    (listed,) = list_cases(tmp_path)
    assert (listed.id, listed.kind, listed.error) == (folder.case.id, "damaged", str(caught.value))


@pytest.mark.parametrize(
    ("number", "expected"), [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EROFS, NotWritable)]
)
def test_a_write_that_fails_leaves_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(expected):
            write_case(tmp_path, make(), {"graph.py": "x"})
    assert os.listdir(tmp_path) == []
    folder = write_case(tmp_path, make(), {})
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(expected):
            update_case(folder, triage=Triage("inductor"))
    assert open_case(tmp_path, "last").case.triage is None


def test_a_file_in_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "cases").write_text("")
    with pytest.raises(NotWritable, match="--cases DIR"):
        write_case(tmp_path / "cases", make(), {})
    assert list_cases(tmp_path / "cases") == []
