"""The pages of runs, sweeps and all cases: what they say, and that they look and behave as the page of a case does."""

import base64
import hashlib
import re
from dataclasses import replace

import pytest
from made_cases import accuracy, hang
from page_parts import Parts

from torchsleuth.core.cases.folder import list_cases, put_files, run_folder
from torchsleuth.core.cases.packing import pack_case, unpack_case
from torchsleuth.front.cli.main import main
from torchsleuth.front.observe.break_reasons import BreakReason
from torchsleuth.front.observe.breaks import Breaks, CapturedGraph, GraphBreak, Place, Tried
from torchsleuth.front.observe.profile import Frame, Loop, Profile, Step
from torchsleuth.front.observe.recompiles import (
    Cause,
    Cure,
    FailedGuard,
    FunctionRecompiles,
    Recompilation,
    Recompiles,
    Refusal,
)
from torchsleuth.front.observe.trace import Trace
from torchsleuth.front.report.evidence import gather
from torchsleuth.front.report.html import page, write_report
from torchsleuth.front.report.pages import run_page, sweep_page, write_cases_page, write_run
from torchsleuth.front.sweep.cells import Bucket, Cell, Failure
from torchsleuth.front.sweep.running import SweepResult

PLACE = Place("/home/ada/model.py", 12, "forward", 'print("loss", loss)')
PASTE = "torch._dynamo.config.reorderable_logging_functions.add(print)"
BREAKS = Breaks(
    (
        GraphBreak(
            PLACE,
            "Unsupported",
            "GB0059",
            BreakReason("`print` cannot be captured", "", "says", (), paste=(PASTE,)),
            (Place("/home/ada/train.py", 40, "main", "loss = net(x)"), PLACE),
            ("Net.forward",),
            (),
            1,
            20,
            5,
            7,
            cured=True,
        ),
        GraphBreak(
            replace(PLACE, line=19, code="n = x.sum().item()"),
            "Unsupported",
            None,
            BreakReason("a number is taken out of a tensor", "select with `torch.where`", "says", ()),
            (PLACE,),
            ("Net.forward",),
            ("Net.forward",),
            1,
            20,
            3,
            0,
        ),
    ),
    (CapturedGraph("Net.forward", PLACE, ("relu",), "inductor", 20, False, 1.2),),
    1,
    0,
    (Tried("these lines", 2, 1, paste=(PASTE,), counted="graph breaks"),),
)
GUARD = FailedGuard("shape", "x", "2", "3", "x.size(0) == 2", 0)
AGAIN = Recompilation("0/1", 1.5, (Refusal("0/0", (GUARD,)),))
RECOMPILES = Recompiles(
    (
        FunctionRecompiles(
            Place("/home/ada/model.py", 9, "forward"),
            8,
            9.5,
            (AGAIN,),
            (
                Cause(
                    "shape",
                    "dimension 0 of x",
                    ("2", "3", "4"),
                    7,
                    Cure("`torch._dynamo.mark_dynamic(x, 0)`"),
                ),
            ),
            "recompile_limit",
            8,
            replace(AGAIN, version="0/8", refused=True),
        ),
    ),
    1,
    8,
    (Tried("dynamic=True", 7, 1, paste=("torch.compile(..., dynamic=True)",)), Tried("nothing", 7, 7)),
)
INSIDE = Step("GraphLowering.run", "lowering", 1.0, "0/0", False, 7, 1, seconds=3.0, ended=True)
TIMES = Profile(
    (Step("dynamo", "capture", 0.0, "0/0", False, 7, 1, seconds=8.0, ended=True, inside=[INSIDE]),),
    frames={(7, "0/0", 0): Frame("Net.forward", "/home/ada/model.py", 9)},
    loop=Loop(
        "/home/ada/model.py",
        16,
        "x = layer(x)",
        30,
        300,
        350,
        ("/home/ada/model.py", 3, "layer"),
        190.0,
        12.0,
    ),
)
FOUND = {"breaks": BREAKS, "recompiles": RECOMPILES, "times": TIMES, "trace": Trace(())}
FACTS = {
    "run": "20260102-030405-abcdef",
    "program_status": 1,
    "failed_compiles": [{"function": "Net.loss", "error": "IndexError: `axis` is out of range"}],
}


def sweep_result(**more):
    at = ("train.py", "inductor")
    case = {
        "id": "a0000001",
        "triage": {
            "component": "inductor",
            "part": "lowering",
            "ops": ["aten.cummin"],
            "user_line": "train.py:3",
        },
        "workarounds": [{"verified": True, "how": "torch._inductor.config.fallback_random = True"}],
        "verified": {"times": 3, "reproduced": 3},
    }
    failing = Cell("k", *at, "fails", 1.0, 1, (Failure("b", "compile_error", "IndexError: `i`"),), "")
    passing = Cell("l", "other.py", "inductor", "passes", 2.0, 0, (), "")
    known = {
        "about": {"torch": "2.13.0"},
        "programs": ("train.py", "other.py"),
        "settings": ("inductor",),
        "counts": {"passes": 1, "fails": 1, "late": 0, "program": 0, "not run": 0, "wanted": 2},
        "eager": (),
        "cells": (failing, passing),
        "buckets": (Bucket("b", "compile_error", "IndexError: `i`", (at,), at, case),),
    }
    return SweepResult(**{**known, **more})


def every_page(folder):
    case = accuracy(folder)
    return {
        "case": page(gather(case)),
        "run": run_page("train.py", FACTS, FOUND, ("times.csv",)),
        "sweep": sweep_page(sweep_result(), {"b": "print(1)\n"}),
        "cases": write_cases_page(folder, list_cases(folder)).read_text(),
    }


def test_all_pages_have_one_style_one_frame_and_working_navigation(tmp_path):
    pages = {name: Parts(text) for name, text in every_page(tmp_path).items()}
    assert len({each.own["style"] for each in pages.values()}) == 1
    for name, each in pages.items():
        assert not each.unclosed, name
        ids = {attrs.get("id") for _, attrs in each.tags}
        links = [attrs["href"] for tag, attrs in each.tags if tag == "a"]
        assert {link[1:] for link in links if link.startswith("#")} <= ids, name
        empty = {id for id, text in each.sections.items() if id == "run" and "not observed" in text}
        assert set(each.sections) - empty <= {link[1:] for link in links}, f"{name}: every section is reached"
        assert {"theme", "main"} <= ids and each.count("h1") == 1


def test_no_page_shows_the_words_of_the_code_in_place_of_plain_ones(tmp_path):
    for name, text in every_page(tmp_path).items():
        shown = re.sub(r'<(script|style|pre)\b.*?</\1>| title="[^"]*"', "", text, flags=re.DOTALL)
        assert "`" not in shown, f"{name}: a backtick is shown as one"
        assert not re.search(r">\s*(compile_error|capture_error|aot_autograd|accuracy)\s*<", shown), name


@pytest.fixture
def run():
    return Parts(run_page("train.py", FACTS, FOUND)).sections


def test_a_run_shows_its_breaks_with_what_to_paste(run):
    assert "model.py:12" in run["breaks"] and PASTE in run["breaks"] and "this break is gone" in run["breaks"]
    assert "graph breaks 2 → 1" in run["breaks"]
    assert "select with torch.where" in run["breaks"] and "(not tried)" in run["breaks"]


def test_a_run_shows_its_recompilations_with_every_guard_and_the_limit(run):
    text = " ".join(run["recompiles"].split())
    assert "2 → 3 → 4" in text and "dimension 0 of x is 3, not 2" in text
    assert "recompile_limit = 8 was reached" in text and "0/8, not compiled" in text
    assert text.index("dynamic=True") < text.index("nothing"), "what helps comes first"


def test_a_run_shows_where_compile_time_goes_and_why(run):
    assert "the loop around model.py:16 was unrolled 30 times" in run["times"]
    assert "190.0 → 12.0 s" in run["times"] and "operators become loops over buffers" in run["times"]


def test_a_run_says_what_failed_in_it():
    text = run_page("train.py", FACTS, FOUND)
    assert "Net.loss could not be compiled: IndexError: <code>axis</code> is out of range" in text
    assert "ended with status 1" in text


def test_a_run_leaves_its_page_beside_its_documents_and_leads_to_them(tmp_path):
    path = write_run(tmp_path, "train.py", {}, {"times": TIMES})
    links = {attrs["href"] for tag, attrs in Parts(path.read_text()).tags if tag == "a"}
    assert {"times.json", "times.csv", "profile.svg", "profile-trace.json"} <= links
    assert all((tmp_path / link).is_file() for link in links if not link.startswith("#"))


def hashes_of(text):
    own = [found[1] for found in re.findall(r"<(style|script)>(.*?)</\1>", text, re.DOTALL)]
    assert len(own) == 2
    return [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in own]


def test_a_page_keeps_its_style_and_its_script_on_the_disk_and_in_a_packed_case(tmp_path):
    folder = accuracy(tmp_path)
    written, _ = write_report(folder)
    packed = unpack_case(pack_case(folder, tmp_path / "a.zip").path, tmp_path / "other")
    cases = write_cases_page(tmp_path, list_cases(tmp_path))
    run = write_run(run_folder(tmp_path, "20260102-030405-abcdef"), "train.py", FACTS, FOUND)
    for path in (written, cases, run, packed.path / "report.html"):
        text = path.read_text()
        for each in hashes_of(text):
            assert f"'sha256-{each}'" in text, path


def test_a_sweep_that_found_nothing_says_so():
    assert "Nothing failed." in sweep_page(sweep_result(buckets=(), cells=()), {})


def test_list_writes_the_cases_as_a_page_that_leads_to_each(tmp_path, capsys):
    accuracy(tmp_path)
    put_files(hang(tmp_path).path, {"report.html": "<p>"})
    put_files(tmp_path / "runs" / "20260102-030405-abcdef", {"index.html": "<p>"})
    assert main(["list", "--page", "--cases", str(tmp_path)]) == 0
    assert str(tmp_path / "index.html") in capsys.readouterr().err
    text = (tmp_path / "index.html").read_text()
    links = [attrs["href"] for tag, attrs in Parts(text).tags if tag == "a"]
    assert [link for link in links if link.endswith(".html")] == [
        "a0000005/report.html",
        "runs/20260102-030405-abcdef/index.html",
    ]
    assert "never finishes" in text and "wrong numbers" in text and "2 cases" in text
