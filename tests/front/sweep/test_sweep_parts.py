"""A sweep's grid, buckets, log and page, without running anything."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from torchsleuth.core.changes import Change
from torchsleuth.front.report.pages import sweep_page
from torchsleuth.front.supervise.program_runs import Program, ProgramRun
from torchsleuth.front.sweep.cells import Bucket, Cell, Failure, SweepLog, buckets_of, bug_of, cell_of, merged
from torchsleuth.front.sweep.grid import (
    NothingToSweep,
    SweptProgram,
    programs_in,
    settings_of,
    uncompiled,
    way,
)
from torchsleuth.front.sweep.running import Limits, Sweep, SweepResult, known_buckets, result_of
from torchsleuth.script_runtime.signature import Signature, normalise_message

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


def cell(name: str, run: ProgramRun, setting: Change | None = None):
    setting = setting or way("inductor")
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
    assert uncompiled(found[3]) == Change(dtype="float64", uncompiled=True)
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
    found = merged(buckets_of(cells, {}))
    assert [len(bucket.cells) for bucket in found] == [2, 1, 1]
    assert found[0].sample == ("small.py", "inductor")
    own = next(bucket for bucket in found if bucket.kind == "status")
    assert "AssertionError" in own.summary and own.cells == (("own.py", "inductor"),)


def test_wrong_numbers_of_two_programs_may_be_two_bugs():
    wrong = failing("", "aaaaaaaa", 5, kind="accuracy")
    cells = [
        cell("a.py", ProgramRun(0, 1.0, cases=(wrong,))),
        cell("a.py", ProgramRun(0, 1.0, cases=(wrong,)), way("inductor", dtype="bfloat16")),
        cell("b.py", ProgramRun(0, 1.0, cases=(wrong,))),
    ]
    assert sorted(len(bucket.cells) for bucket in buckets_of(cells, {})) == [1, 2]


REPRO = '''"""wrong result: outputs[0] (torch 2.13.0, case a0000001)"""

import sys
import torch

EXPECTED = {'kind': 'accuracy', 'outputs': ('outputs[0]',)}


def f(x):
    return torch.relu(x).sum(1)


torch.manual_seed(0)
x = torch.randn(2, 3)
print("torchsleuth: compiling", file=sys.stderr)
try:
    wanted, got = f(x), torch.compile(f, backend="one")(x)
except Exception as error:
    sys.exit(2)
if not torch.allclose(wanted, got, rtol=0, atol=1e-06, equal_nan=True):
    print('REPRODUCED: wrong result: outputs[0]')
'''
BLAMED = {"kind": "accuracy", "triage": {"component": "inductor", "part": "codegen"}}


@pytest.mark.parametrize(
    "changes",
    [
        {"x)": "y)", "x =": "y ="},  # names
        {
            "randn(2, 3)": "randn(-4, 1)",
            "1e-06": "2e-05",
            "outputs[0]": "outputs[3]",
        },  # numbers of inputs and results
        {'backend="one"': 'backend="other"', "a0000001": "a0000002"},
    ],
)
def test_repros_that_differ_in_nothing_that_matters_are_one_bug(changes):
    other = REPRO
    for old, new in changes.items():
        assert old in other
        other = other.replace(old, new)
    assert bug_of(BLAMED, REPRO) == bug_of(BLAMED, other)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sum(1)", "sum(0)"),
        ("torch.relu", "torch.tanh"),
        ("torch.randn(2, 3)", "torch.randn(2, 3, dtype=torch.bfloat16)"),
        ("torch.relu(x)", "torch.relu(x + x)"),
    ],
)
def test_another_call_number_or_dtype_may_be_another_bug(old, new):
    assert old in REPRO and bug_of(BLAMED, REPRO) != bug_of(BLAMED, REPRO.replace(old, new))


def test_another_part_at_fault_is_another_bug_and_what_cannot_be_read_is_none():
    elsewhere = {"kind": "accuracy", "triage": {"component": "inductor", "part": "lowering"}}
    assert bug_of(BLAMED, REPRO) != bug_of(elsewhere, REPRO) != bug_of({"kind": "crash"}, REPRO)
    assert bug_of(BLAMED, "def f(") is None and bug_of(BLAMED, "") is None and bug_of(BLAMED, "\0") is None


def swept(tmp_path, *programs: str) -> Sweep:
    """A sweep in which every program is wrong, each in a bucket of its own."""
    tmp_path.mkdir(exist_ok=True)
    known = [SweptProgram(name, Program(("python", name))) for name in programs]
    log = SweepLog(tmp_path / "results.jsonl")
    sweep = Sweep(known, [way()], log, Limits(0, 1, 1), tmp_path, {"torch": "2.13.0"})
    for number, each in enumerate(known):
        run = ProgramRun(0, 1.0, cases=(failing("", f"{number}" * 8, 5, kind="accuracy"),))
        log.add_cell(cell_of(sweep.key(each, way()), each, way(), run))
    return sweep


def test_buckets_that_turn_out_to_be_one_bug_are_counted_as_one_and_known_as_one(tmp_path):
    sweep = swept(tmp_path, "a.py", "b.py", "c.py")
    assert len(sweep.buckets()) == 3
    for bucket, bug in zip(sweep.buckets(), ("same", "same", None)):
        case = {
            "id": f"{bucket.sample[0][0]}aaaaaaa",
            **dict.fromkeys(("triage", "workarounds", "verified")),
        }
        sweep.log.add_look(bucket.key, case, None, bug)
    sweep.log = SweepLog(sweep.log.path)  # as the same command finds it later
    result = result_of(sweep, frozenset())
    one, other = result.buckets
    assert [program for program, _ in one.cells] == ["a.py", "b.py"]
    assert [each.case["id"] for each in (one, *one.same, other)] == ["aaaaaaaa", "baaaaaaa", "caaaaaaa"]
    page = sweep_page(result, {})
    assert page.count('href="#bucket-1"') == 3 and "counted as one bug" in page

    document = result.to_json()
    (tmp_path / "sweep.json").write_text(json.dumps({**document, "buckets": document["buckets"][:1]}))
    known = known_buckets(tmp_path / "sweep.json")
    again = result_of(sweep, known)
    assert [bucket["known"] for bucket in again.to_json()["buckets"]] == [True, False] and not again.is_green
    fresh = swept(tmp_path / "later", "d.py")  # a program that the earlier sweep did not have
    fresh.log.add_look(fresh.buckets()[0].key, {"id": "dddddddd"}, None, "same")
    assert result_of(fresh, known).is_green


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
    case = {
        "id": evil,
        "triage": {"component": evil, "part": evil, "ops": [evil], "user_line": evil, "code": evil},
        "workarounds": [{"verified": True, "how": evil}],
        "verified": {"times": 3, "reproduced": 3},
    }
    at = (evil, evil)
    result = SweepResult(
        about={"torch": evil},
        programs=(evil,),
        settings=("inductor",),
        counts={"passes": 0, "fails": 1, "late": 0, "program": 0, "not run": 0, "wanted": 1},
        eager=(),
        cells=(Cell("k", evil, "inductor", "fails", 1.0, 1, (Failure(evil, evil, evil),), evil),),
        buckets=(
            Bucket(evil, evil, evil, (at,), at, case, same=(Bucket("b", evil, evil, (), at, {"id": evil}),)),
        ),
    )
    page = sweep_page(result, {evil: evil})
    seen = Tags()
    seen.feed(page)
    assert page.count("<script") == 1 and "onload" not in seen.attributes
    assert {"table", "section"} <= seen.tags and "&lt;script&gt;" in page
