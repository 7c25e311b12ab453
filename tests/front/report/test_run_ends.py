"""How `torchsleuth run` ends: the screen, the two files, and words about the last workaround; each standing alone."""

from __future__ import annotations

import dataclasses
import io
import re
import sys

import pytest
from made_cases import WORKAROUNDS, accuracy, hang

from program_runs import run_watched
from torchsleuth.core.cases.errors import NotWritable
from torchsleuth.core.protocol.steps import Asked, SearchBegins, Smaller
from torchsleuth.front.cli import run as run_module
from torchsleuth.front.cli.output import StatusLine
from torchsleuth.front.report import words
from torchsleuth.front.supervise import road
from torchsleuth.front.supervise.case_at_work import CaseAtWork, Processes

PROGRAM = """
    import torch

    def broken(gm, inputs):
        raise ValueError("no code for relu")

    @torch.compile(backend=broken)
    def f(x):
        return torch.relu(x * 2)

    f(torch.ones(4))
"""


def test_a_run_ends_with_the_screen_and_leaves_page_and_issue_text(tmp_path):
    ran = run_watched(tmp_path, PROGRAM)
    last = [line.removeprefix("torchsleuth: ") for line in ran.ours()]
    last = last[max(i for i, line in enumerate(last) if line == f"case {ran.case['id']}") :]
    assert last[1].startswith(
        "what happened  the compiler stopped with an error: ValueError: no code for relu"
    )
    assert last[-2].endswith("report.html") and last[-1].endswith("issue.md")
    assert "no code for relu" in ran.file("report.html") and "no code for relu" in ran.file("issue.md")


def test_a_report_that_cannot_be_written_costs_one_sentence(tmp_path, monkeypatch, capsys):
    folders = [(accuracy(tmp_path), None), (hang(tmp_path), None)]
    written = []

    def write(folder):
        if folder.case.kind == "accuracy":
            raise NotWritable(folder.path, "it is read-only")
        written.append(folder.case.id)

    monkeypatch.setattr("torchsleuth.front.report.html.write_report", write)
    run_module._report(folders)
    said = capsys.readouterr().err
    assert "it is read-only" in said and "whose bug" in said and written == ["a0000005"]


def test_without_a_terminal_progress_is_a_few_lines(capsys):
    line = StatusLine(60.0)
    line.update(SearchBegins(64, "lines"))
    for calls in range(63, 0, -1):
        line.update(Asked("statements", 1))
        line.update(Smaller("statements", calls))
    said = capsys.readouterr().err.splitlines()
    assert [text.partition("→ ")[2].partition(" ")[0] for text in said] == ["32", "16", "8", "4", "2", "1"]


def narrow_terminal(monkeypatch):
    """A narrow terminal: what was written to it, and what a person sees of that, row by row."""
    written = io.StringIO()
    monkeypatch.setattr(written, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "20")

    def rows():
        seen, at = [""], 0
        for up, lost, text in re.findall(r"\x1b\[(\d+)A|(\x1b\[J)|([^\x1b]+)", written.getvalue()):
            at -= int(up or 0)
            if lost:
                del seen[at:]
                seen.append("")
            for number, part in enumerate(text.split("\n")):
                at += bool(number)
                seen += [""] * (at + 1 - len(seen))
                seen[at] = part.rpartition("\r")[2] if "\r" in part else seen[at] + part
        return seen

    return rows


def test_in_a_terminal_a_look_and_the_status_are_written_over_in_place(monkeypatch):
    terminal = narrow_terminal(monkeypatch)
    line = StatusLine(60.0)
    line.hold(["what happened  an error", "likely part    not known yet"])
    line.update(SearchBegins(64, "calls"))
    line.say("case 1: reproduced in 3 s")
    line.hold(["what happened  an error", "whose bug      Inductor"])
    line.update(Smaller("statements", 3))
    rows = terminal()
    assert rows[:3] == [
        "torchsleuth: case 1: reproduced in 3 s",
        "what happened  an error",
        "whose bug      Inductor",
    ]
    assert rows[3].startswith("torchsleuth: 64 → 3 calls") and len(rows) == 4
    assert all(len(row) < 60 for row in rows)
    line.end(leave=False)
    assert terminal() == ["torchsleuth: case 1: reproduced in 3 s", ""]


@pytest.mark.parametrize(
    ("tried", "words"),
    [
        ((), "no workaround was tried"),
        ((WORKAROUNDS[2],), "none of 1 workarounds that were tried works"),
        (WORKAROUNDS[1:], "tried and works: backend eager"),
    ],
)
def test_what_came_of_the_workarounds_is_said(tmp_path, monkeypatch, tried, words):
    folder = hang(tmp_path)
    known = dataclasses.replace(folder, case=dataclasses.replace(folder.case, graph=None, workarounds=tried))
    monkeypatch.setattr(road, "try_on_program", lambda case: None)
    said: list[str] = []
    road.cure_program(CaseAtWork(known, Processes(), sys.maxsize, said.append))
    assert said[-1].endswith(words), said


def test_where_time_was_up_before_the_first_workaround_none_is_said_to_have_failed(tmp_path):
    case = dataclasses.replace(hang(tmp_path).case, workarounds=())
    assert words.no_workaround(case) == "none was tried"
