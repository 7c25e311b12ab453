"""`show`: what is to be pasted is shown as it is to be pasted, and nothing of a case moves the cursor."""

import dataclasses

from made_cases import WORKAROUNDS, accuracy, hang

from torchsleuth.front.cli.look import show_case
from torchsleuth.front.report.html import write_report
from torchsleuth.front.report.terminal import ending


def shown(folder, capsys):
    show_case(folder)
    return capsys.readouterr().out


def test_a_workaround_of_several_lines_keeps_them(tmp_path, capsys):
    folder = accuracy(tmp_path)
    lines = [line.strip() for line in shown(folder, capsys).splitlines()]
    first = lines.index("line 0")
    assert lines[first : first + 6] == WORKAROUNDS[0].how.splitlines()


def test_the_report_is_named_once_it_is_there(tmp_path, capsys):
    folder = hang(tmp_path)
    assert "report.html" not in shown(folder, capsys)
    write_report(folder)
    assert "report.html" in shown(folder, capsys)


def test_lines_of_a_workaround_hide_nothing(tmp_path, capsys):
    folder = accuracy(tmp_path)
    hostile = dataclasses.replace(WORKAROUNDS[0], how="a = 1\n\x1b[2Jb = 2\rc", name="x\ny")
    case = dataclasses.replace(folder.case, workarounds=(hostile,))
    text = shown(dataclasses.replace(folder, case=case), capsys)
    assert "\x1b" not in text and "\r" not in text and "b = 2c" in text


LONG = f"""\
from torch._inductor.graph import make_fallback
make_fallback(torch.ops.aten.{"very_" * 30}long.default, warn=False, override_decomp=True)"""


def test_what_is_to_be_pasted_is_python_in_any_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    folder = accuracy(tmp_path, workarounds=(dataclasses.replace(WORKAROUNDS[0], how=LONG),))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    _, _, below = shown(folder, capsys).partition("\npaste:\n")
    pasted, _, _ = below.partition("\n\n")
    assert pasted == LONG
    compile(pasted, "pasted", "exec")


def test_screen_show_page_and_issue_recommend_the_same(tmp_path, capsys):
    folder = accuracy(tmp_path)
    page, issue = write_report(folder)
    screen = "\n".join(line.text for line in ending([(folder, "a0000001")], width=90))
    for text in (screen, shown(folder, capsys), issue.read_text()):
        assert "interpolate left out" in text and "backend eager" not in text
    assert page.read_text().index("interpolate left out") < page.read_text().index("backend eager")
