"""The screen a run ends with: its order, its size, and that nothing of a case is obeyed by a terminal."""

import dataclasses
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from golden_files import agreed
from made_cases import KINDS, WORKAROUNDS, accuracy, compile_error, crash, hang

from made import make
from torchsleuth.front.report.html import write_report
from torchsleuth.front.report.terminal import ending, first_look
from torchsleuth.front.report.words import likely_part, said
from torchsleuth.script_runtime.signature import Signature

ORDER = ["what happened", "your line", "whose bug", "workaround", "repro", "how sure", "next"]


def screen(*folders, **size):
    return [line.text for line in ending([(each, each.case.id) for each in folders], **size)]


@pytest.fixture
def cases(tmp_path, monkeypatch):
    """Paths are shown as they were given: a relative one is the same in every test run."""
    monkeypatch.chdir(tmp_path)
    return Path("cases")


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_the_screen_of_each_kind(cases, make):
    folder = make(cases)
    looks = [first_look(folder, folder.case.id, 2.0, width=width) for width in (80, 120)]
    screens = [screen(folder, width=width) for width in (80, 120)]
    shown = "\n\n".join("\n".join(lines) for lines in (*looks, *screens))
    text, wanted = agreed(f"ending-{make.__name__}.txt", shown + "\n")
    assert text == wanted


def test_a_first_look_is_said_to_be_one_and_what_was_not_tried_is_an_idea(cases):
    text = "\n".join(first_look(compile_error(cases), "last", 2.4, width=200))
    assert "first look, 2 s after the program's end" in text and "(an idea, not tried)" in text


@pytest.mark.parametrize(
    ("frames", "part"),
    [
        (
            ("model.py:f", "torch/fx/x.py:run", "torch/_inductor/lowering.py:wrapped"),
            "generates the code: lowering (",
        ),
        (("torch/_inductor/fx_passes/pad_mm.py:pad",), "generates the code: graph patterns ("),
        (("torch/_ops.py:f", "torch/_functorch/_aot_autograd/x.py:f"), "AOTAutograd"),
        (("torch/_subclasses/fake_tensor.py:f",), "not known yet"),
    ],
)
def test_the_likely_part_is_where_the_error_came_up(frames, part):
    signature = Signature("compile_error", "compile", ("ValueError",), "bad", frames)
    assert part in likely_part(make(signature=signature))


TRACEBACK = """
  File "/home/me/model.py", line 12, in forward
    x = self.conv(x)
  File "/opt/lib/python3.11/site-packages/torch/_inductor/lowering.py", line 400, in wrapped
Found from :
   File "/home/me/model.py", line 36, in forward
    return torch.cummin(y, 1)
"""


def test_a_first_look_has_the_line_of_the_graph_that_the_error_names(cases):
    folder = accuracy(cases, triage=None)
    folder.file("traceback.txt").write_text(TRACEBACK)
    assert any(line.startswith("your line      model.py:36") for line in first_look(folder, "last", 2.0))


def test_the_numbers_of_a_message_are_those_of_the_error_also_where_another_carried_it():
    signature = Signature(
        "capture_error", "capture", ("x.TorchRuntimeError", "RuntimeError"), "got [#] X [#]"
    )
    for told in (
        "x.Outer: RuntimeError: got [3, 16] X [17, 4]",
        "failed: got RuntimeError('got [3, 16] X [17, 4]')",
    ):
        assert said(make(signature=signature), told) == "RuntimeError: got [3, 16] X [17, 4]"


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
@pytest.mark.parametrize(("width", "height"), [(90, 24), (80, 24), (40, 24), (140, 50)])
def test_it_is_one_screen_in_the_order_of_the_questions(cases, make, width, height):
    folder = make(cases)
    write_report(folder)
    lines = screen(folder, width=width, height=height)
    assert len(lines) < height
    starts = [next(i for i, line in enumerate(lines) if line.startswith(label)) for label in ORDER]
    assert starts == sorted(starts)
    prose = lines[: starts[ORDER.index("workaround")]]
    assert all(len(line) <= width for line in prose)


def test_several_cases_have_a_line_each_after_the_first(cases):
    found = accuracy(cases), crash(cases), *(hang(cases),) * 4
    lines = screen(*found, width=90)
    also = [line for line in lines if line.startswith("also")]
    assert "case a0000003" in also[0] and also[-1].endswith("2 more cases: torchsleuth list")


def test_the_operator_is_underlined(cases):
    lines = screen(accuracy(cases), width=90)
    at = next(i for i, line in enumerate(lines) if "y = F.interpolate" in line)
    under = lines[at + 1]
    assert lines[at][under.index("^") : under.rindex("^") + 1] == "F.interpolate"


def test_the_line_to_paste_is_whole_however_narrow_the_terminal(cases):
    folder = accuracy(cases, workarounds=WORKAROUNDS[1:])
    lines = [line.strip() for line in screen(folder, width=30)]
    assert 'torch.compile(model, backend="eager")' in lines


def test_a_workaround_of_many_lines_is_the_same_one_and_is_pasted_from_show(cases):
    lines = screen(accuracy(cases), width=90)
    at = next(i for i, line in enumerate(lines) if line.startswith("workaround"))
    assert "interpolate left out" in lines[at] and "backend eager" not in "\n".join(lines)
    assert any("6 lines to paste: torchsleuth show a0000001" in line for line in lines)


def test_a_path_is_never_broken(cases):
    folder = accuracy(Path.cwd() / "a-folder-with-a-rather-long-name" / cases)
    write_report(folder)
    lines = screen(folder, width=40)
    long = "a-folder-with-a-rather-long-name/cases/a0000001"
    assert f"look at and attach: {long}/report.html" in lines[-2] and f"repro: {long}/repro.py" in lines


def test_a_terminal_obeys_nothing_of_a_case(cases):
    folder = accuracy(cases)
    triage = dataclasses.replace(
        folder.case.triage, code="x = \x1b[2Jy\u202e", detail="\x07", user_line="m\x1b]0;t\x07.py:1"
    )
    folder = dataclasses.replace(folder, case=dataclasses.replace(folder.case, triage=triage))
    assert all(line.isprintable() for line in screen(folder, width=90))


SHOW = """
import sys
from pathlib import Path
sys.path[:0] = {paths!r}
from made import make
from made_cases import accuracy
from torchsleuth.front.report.words import likely_part, said
from torchsleuth.front.report.terminal import show_ending
folder = accuracy(Path("cases"))
show_ending([(folder, folder.case.id)])
"""


def _shown(tmp_path, stderr, **env):
    code = SHOW.format(paths=[p for p in sys.path if p])
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")}
    done = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        stderr=stderr,
        stdout=subprocess.PIPE,
        env={**kept, "TERM": "xterm", **env},
    )
    return done


def test_without_a_terminal_there_are_plain_lines_on_stderr_alone(tmp_path):
    out, err = _shown(tmp_path, subprocess.PIPE).communicate(timeout=60)
    assert out == b"" and b"\x1b" not in err and b"\ntorchsleuth: whose bug" in err
    assert all(line.startswith(b"torchsleuth: ") for line in err.splitlines())


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_are_for_terminals_that_want_them(tmp_path, env, coloured):
    ours, theirs = pty.openpty()
    done = _shown(tmp_path, theirs, **env)
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:  # the other side is closed
        pass
    done.communicate(timeout=60)
    os.close(ours)
    assert b"whose bug" in said and (b"\x1b[31m" in said) == coloured
