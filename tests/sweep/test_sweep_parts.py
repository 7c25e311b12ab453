"""A sweep's grid, buckets, log and page, without running anything."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from torchsleuth.program.runs import ProgramRun
from torchsleuth.script_runtime.signature import Signature, normalise_message
from torchsleuth.sweep.cells import SweepLog, buckets_of, cell_of
from torchsleuth.sweep.grid import NothingToSweep, Setting, SweptProgram, programs_in, settings_of
from torchsleuth.sweep.page import page_of

AS_IS = ["as-is"]


class Tags(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes = set(), set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def failing(summary: str, ident: str, calls: int, kind: str = "compile_error") -> dict:
    signature = Signature(kind, "compile", ("InductorError",), normalise_message(summary))
    return {"id": ident, "kind": kind, "graph": {"calls": calls}, "signature": signature.to_json()}


def cell(name: str, run: ProgramRun, setting: Setting | None = None):
    setting = setting or Setting("inductor")
    return cell_of(f"{name} {setting.name}", SweptProgram(name, None), setting, run)


def test_only_inductor_has_modes_and_no_setting_is_there_twice():
    found = settings_of(["inductor", "eager", "inductor"], ["default", "max-autotune"], ["as-is", "float64"])
    assert [s.name for s in found] == [
        "inductor default",
        "inductor max-autotune",
        "eager",
        "inductor default float64",
        "inductor max-autotune float64",
        "eager float64",
    ]
    assert found[3].eager == Setting(dtype="float64", uncompiled=True)
    assert [s.name for s in settings_of(AS_IS, AS_IS, AS_IS)] == ["as is"]


def test_a_folder_gives_its_scripts_and_a_list_its_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    for name in ("b.py", "a.py", "_shared.py", "notes.txt"):
        Path("models", name).write_text("pass")
    assert [p.name for p in programs_in(Path("models"))] == ["a.py", "b.py"]
    Path("list.txt").write_text(
        "# every night\nmodels/a.py --steps '2 3'\n\n-m json.tool\nmodels/a.py --steps '2 3'\n"
    )
    found = programs_in(Path("list.txt"))
    assert [p.program.command[1:] for p in found] == [("models/a.py", "--steps", "2 3"), ("-m", "json.tool")]
    before = programs_in(Path("models"))[0].text
    Path("models/a.py").write_text("pass # changed")
    assert programs_in(Path("models"))[0].text != before


@pytest.mark.parametrize("content", [None, "", "no_such.py\n", "no-such-command x\n", "a.py 'b\n", "\udcff"])
def test_what_holds_no_programs_is_one_sentence(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("list.txt").write_text(content, errors="surrogateescape")
    with pytest.raises(NothingToSweep) as why:
        programs_in(Path("list.txt"))
    assert "\n" not in str(why.value)


def test_failures_alike_are_one_bucket_whose_smallest_graph_stands_for_it():
    cells = [
        cell("big.py", ProgramRun(1, 2.0, cases=(failing("size 3 of buf7", "aaaaaaaa", 50),))),
        cell("small.py", ProgramRun(1, 9.0, cases=(failing("size 9 of buf1", "bbbbbbbb", 4),))),
        cell("other.py", ProgramRun(1, 1.0, cases=(failing("another one", "cccccccc", 1),))),
        cell("own.py", ProgramRun(1, 1.0, tail="Traceback\nAssertionError: 1 != 2")),
        cell("late.py", ProgramRun(143, 30.0, timed_out=True)),
        cell("fine.py", ProgramRun(0, 1.0)),
    ]
    assert [c.answer for c in cells] == ["fails"] * 4 + ["late", "passes"]
    found = buckets_of(cells, {})
    assert [len(bucket.cells) for bucket in found] == [2, 1, 1]
    assert found[0].sample == ("small.py", "inductor")
    own = next(bucket for bucket in found if bucket.kind == "status")
    assert "AssertionError" in own.summary and own.cells == (("own.py", "inductor"),)


def test_wrong_numbers_of_two_programs_may_be_two_bugs():
    wrong = failing("", "aaaaaaaa", 5, kind="accuracy")
    cells = [
        cell("a.py", ProgramRun(0, 1.0, cases=(wrong,))),
        cell("a.py", ProgramRun(0, 1.0, cases=(wrong,)), Setting("inductor", dtype="bfloat16")),
        cell("b.py", ProgramRun(0, 1.0, cases=(wrong,))),
    ]
    assert sorted(len(bucket.cells) for bucket in buckets_of(cells, {})) == [1, 2]


def test_the_log_goes_on_after_a_kill_in_the_middle_of_a_line(tmp_path):
    log = SweepLog(tmp_path / "results.jsonl")
    first = cell("a.py", ProgramRun(1, 2.0, cases=(failing("x", "aaaaaaaa", 5),)))
    log.add_cell(first)
    log.add_look(first.failures[0].bucket, {"id": "aaaaaaaa"}, None)
    with open(log.path, "a") as file:
        file.write('{"key": "half')
    again = SweepLog(tmp_path / "results.jsonl")
    assert again.cells == {first.key: first}
    assert again.looked_into[first.failures[0].bucket]["case"] == {"id": "aaaaaaaa"}
    assert SweepLog(tmp_path / "results.jsonl", fresh=True).cells == {}


def test_nothing_of_a_program_is_obeyed_by_the_page():
    evil = "<script>alert(1)</script>\"' onload=x"
    document = {
        "about": {"torch": evil},
        "programs": [evil],
        "settings": ["inductor"],
        "counts": {"passes": 0, "fails": 1, "late": 0, "program": 0, "not run": 0, "wanted": 1},
        "eager": [],
        "cells": [
            {
                "program": evil,
                "setting": "inductor",
                "answer": "fails",
                "seconds": 1.0,
                "status": 1,
                "why": evil,
                "failures": [{"bucket": evil, "kind": evil, "summary": evil}],
            }
        ],
        "buckets": [
            {
                "key": evil,
                "kind": evil,
                "summary": evil,
                "cells": [[evil, evil]],
                "known": False,
                "why_not": None,
                "case": {
                    "id": evil,
                    "triage": {
                        "component": evil,
                        "part": evil,
                        "ops": [evil],
                        "user_line": evil,
                        "code": evil,
                    },
                    "workarounds": [{"verified": True, "how": evil}],
                    "verified": {"times": 3, "reproduced": 3},
                },
            }
        ],
    }
    page = page_of(json.loads(json.dumps(document)), {evil: evil})
    seen = Tags()
    seen.feed(page)
    assert "script" not in seen.tags and "onload" not in seen.attributes
    assert {"table", "section"} <= seen.tags and "&lt;script&gt;" in page
