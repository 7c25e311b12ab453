"""`show`: what is to be pasted is shown as it is to be pasted, and nothing of a case moves the cursor."""

import dataclasses

from made_cases import WORKAROUNDS, accuracy, hang

from torchsleuth.front.report.html import write_report
from torchsleuth.front.report.terminal import show_case


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
