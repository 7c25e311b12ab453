"""Cases in a terminal: the first look at one, and the screen with which a run ends.

That screen shows the first case in the order in which a person asks: what happened, which of my lines, whose bug, what
helps, how do I show it, how sure is that, what now. Plain lines where there is no terminal.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from torchsleuth.core.cases.door import NotRead
from torchsleuth.core.cases.folder import CaseFolder
from torchsleuth.core.cases.model import Case, Triage, best_workaround
from torchsleuth.core.cases.scrub import hidden, printable
from torchsleuth.front.report import words

# Where there is no terminal, the screen of one.
WIDTH, HEIGHT = 100, 24
WHOSE = "torchsleuth: "
_LABELS = 15
_NARROW = 60
_FEWEST_SHOWN, _MOST_SHOWN = 2, 10
_MOST_OTHERS = 3
# A screen has room for a workaround of so many lines; a longer one is pasted from `show`.
_MOST_PASTED = 5


@dataclass(frozen=True)
class Line:
    """One line of the screen; its first `label` characters are a label.

    `style` is rich's word for how the rest looks where there are colours.
    """

    text: str
    style: str = ""
    label: int = 0


def ending(
    folders: Sequence[tuple[CaseFolder, str]], *, width: int = WIDTH, height: int = HEIGHT
) -> list[Line]:
    """The screen: the first case in full, the others by name. Each comes with what to type for it.

    Used as `for line in ending([(folder, "1a2b3c4d")], width=80): print(line.text)`.
    """
    (folder, name), *others = folders
    page = _Page(max(20, width))
    case = folder.case
    page.put(f"{WHOSE}case {case.id}", style="bold")
    said = said_of(folder)
    page.say("what happened", words.what_happened(case, said), style="red", most=page.several)
    _your_line(page, case, said)
    page.say("whose bug", words.whose_bug(case), most=page.several)
    _workaround(page, case, name)
    shown = _repro(page, folder)
    page.say("how sure", words.how_sure(case), most=2)
    page.whole("next", _next(folder, name))
    for other, word in others[:_MOST_OTHERS]:
        page.say("also", f"case {word}: {words.what_happened(other.case, said_of(other))}", most=1)
    if len(others) > _MOST_OTHERS:
        page.say("also", f"{len(others) - _MOST_OTHERS} more cases: torchsleuth list", most=1)
    return page.filled(shown, max(HEIGHT - 4, height - 1))


def first_look(
    folder: CaseFolder, name: str, seconds: float, *, searching: bool = True, width: int = WIDTH
) -> list[str]:
    """The answer as far as it is known, `seconds` after the program's end: what, which line, which part, what to do.

    Used as `print("\\n".join(first_look(open_case("cases", "last"), "last", 2.0)))`.
    """
    page, case = _Page(max(20, width)), folder.case
    said = said_of(folder)
    known = case.triage is not None and case.triage.component is not None
    again = f", seen {case.seen} times" if case.seen > 1 else ""
    page.put(f"{WHOSE}case {case.id}{again}, first look, {seconds:.0f} s after the program's end")
    page.say("what happened", words.what_happened(case, said), most=2)
    _your_line(page, case, said)
    page.say(
        "whose bug" if known else "likely part",
        words.whose_bug(case) if known else words.likely_part(case),
        most=2,
    )
    works = best_workaround(case.workarounds or ())
    if works is not None:
        _workaround(page, case, name)
    elif words.is_the_programs(case) and case.triage is not None and case.triage.user_line:
        page.say("what to do", f"fix {case.triage.user_line}: it fails without the compiler, too", most=2)
    else:
        how = "TORCH_COMPILE_DISABLE=1 in its environment"
        page.say("what to do", f"to go on at once, uncompiled: {how} (an idea, not tried)", most=2)
    if searching:
        page.say("", "the search goes on; Ctrl-C stops it and keeps what is known", most=2)
    return [line.text for line in page.lines]


def show_ending(folders: Sequence[tuple[CaseFolder, str]]) -> None:
    """Prints the screen on stderr: stdout is the program's. Never raises: nobody may be there to read.

    Where there is no terminal, every line says whose it is, as all others of torchsleuth's do.
    """
    with contextlib.suppress(OSError, ValueError):
        terminal = sys.stderr.isatty()
        size = shutil.get_terminal_size((WIDTH, HEIGHT)) if terminal else (WIDTH, HEIGHT)
        console = Console(stderr=True, highlight=False, width=None if terminal else 10_000)
        if terminal:
            console.print()
        for line in ending(folders, width=size[0], height=size[1]):
            whose = "" if terminal or line.text.startswith(WHOSE) else WHOSE
            label, rest = line.text[: line.label], line.text[line.label :]
            console.print(Text.assemble(whose, (label, "bold"), (rest, line.style)), soft_wrap=True)


class _Page:
    """Lines under labels; in a column of their own where there is room, before the text where there is not."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.beside = width >= _NARROW
        self.indent = " " * _LABELS if self.beside else "  "
        self.several = 3 if self.beside else 2
        self.lines: list[Line] = []
        self.elastic = 0

    def put(self, text: str, style: str = "") -> None:
        self.lines.append(Line(_safe(text), style))

    def say(self, label: str, text: str, *, style: str = "", most: int) -> None:
        """Text under a label, wrapped, cut after so many lines; lines that are given stay lines."""
        room = self.width - len(self.indent)
        first = "" if self.beside or not label else f"{label}: "
        wrapped = [
            part
            for line in (first + text).splitlines()
            for part in textwrap.wrap(_safe(line), room, break_on_hyphens=False) or [""]
        ]
        if len(wrapped) > most:
            wrapped = wrapped[:most]
            wrapped[-1] = wrapped[-1][: room - 2] + " …"
        for number, part in enumerate(wrapped):
            lead = "" if not self.beside else label.ljust(_LABELS)
            marked = 0 if number else len(label)
            self.lines.append(Line((self.indent if number else lead) + part, style, marked))

    def whole(self, label: str, lines: Sequence[str]) -> None:
        """Commands and paths, to be copied: a line each, however long."""
        for number, text in enumerate(lines):
            lead = label.ljust(_LABELS) if self.beside else f"{label}: "
            marked = 0 if number else len(label)
            self.lines.append(Line((self.indent if number else lead) + _safe(text), "", marked))

    def code(self, text: str, style: str = "cyan") -> None:
        """A line to paste or to recognise: as it is, however long."""
        self.lines.append(Line(f"{self.indent}    {_safe(text)}".rstrip(), style))

    def filled(self, shown: Sequence[str], height: int) -> list[Line]:
        """All lines, with as much of the script in its place as the screen has room for."""
        room = max(_FEWEST_SHOWN, min(_MOST_SHOWN, height - len(self.lines)))
        kept = list(shown)
        if len(shown) > room:
            kept = [*shown[: room - 1], f"… {len(shown) - room + 1} more lines"]
        before, after = self.lines[: self.elastic], self.lines[self.elastic :]
        self.lines = before
        for line in kept:
            self.code(line[: self.width])
        return [*self.lines, *after]


def _your_line(page: _Page, case: Case, said: str) -> None:
    triage = case.triage or Triage()
    if triage.user_line is None and (likely := words.likely_line(case, said)) is not None:
        triage = dataclasses.replace(triage, user_line=likely[0], code=likely[1])
    if triage.user_line is None:
        lines = case.graph.source_lines if case.graph is not None else ()
        page.say("your line", triage.not_narrowed or words.one_of(lines, 6), most=2)
        return
    where = f" in {triage.function}" if triage.function else ""
    module = f" of {triage.module}" if triage.module else ""
    page.say("your line", triage.user_line + where + module, most=1)
    if triage.code:
        code = _safe(triage.code)
        start, end = words.underlined(code, triage)
        room = page.width - len(page.indent) - 4
        cut = max(0, min(start - room // 2, len(code) - room)) if len(code) > room else 0
        page.code(code[cut : cut + room], "bold")
        page.code(" " * (start - cut) + "^" * max(1, min(end - cut, room) - (start - cut)), "red")
    for other in triage.with_lines:
        page.say("with", other, most=1)


def _workaround(page: _Page, case: Case, name: str) -> None:
    works = best_workaround(case.workarounds or ())
    if works is None:
        page.say("workaround", words.no_workaround(case), most=1)
        return
    page.say("workaround", words.about_workaround(works), style="green", most=page.several)
    lines = works.how.splitlines()
    if len(lines) > _MOST_PASTED:
        page.say("", f"{len(lines)} lines to paste: torchsleuth show {name}", most=1)
        return
    for line in lines:
        page.code(line, "green")


def _repro(page: _Page, folder: CaseFolder) -> list[str]:
    """Says where the script is; its telling lines, for which there is a place right after."""
    name = next((each for each in ("repro.py", "original.py") if folder.has(each)), None)
    if name is None:
        page.say("repro", "none", most=1)
        return []
    try:
        text = folder.text(name)
    except NotRead as why:
        page.say("repro", f"{name} cannot be read: {why}", most=1)
        return []
    small = words.made_small(folder.case)
    count = len(text.splitlines())
    lines = "1 line" if count == 1 else f"{count} lines"
    page.whole("repro", [_path(folder, name)])
    page.say("", f"{lines}; {small}", most=2)
    page.elastic = len(page.lines)
    return excerpt(text) if name == "repro.py" else []


def _path(folder: CaseFolder, name: str) -> str:
    """The path of a file of the case, from here where that is shorter."""
    path = folder.path / name
    return min(str(path), os.path.relpath(path), key=len)


def _next(folder: CaseFolder, name: str) -> list[str]:
    case = folder.case
    found = [f"torchsleuth show {name}"]
    if words.is_the_programs(case) and case.triage is not None and case.triage.user_line:
        why = words.whose_bug(case).partition(": ")[2]
        found.insert(0, f"fix {case.triage.user_line}: {why}")
    if case.no_repro is None and case.minified is None and not words.is_the_programs(case):
        found.append(f"torchsleuth minify {name}")
    if folder.has("report.html"):
        found.append(f"look at and attach: {_path(folder, 'report.html')}")
    if folder.has("issue.md") and not words.is_the_programs(case):
        found.append(f"file: {_path(folder, 'issue.md')}")
    return found


def said_of(folder: CaseFolder) -> str:
    """The error as it was told, where it can be read."""
    try:
        return folder.text("traceback.txt") if folder.has("traceback.txt") else ""
    except NotRead:
        return ""


def _safe(text: str) -> str:
    return hidden(printable(text))


_BEFORE, _AFTER, _END = "EXPECTED = ", 'print("torchsleuth: ', "except "


def excerpt(script: str) -> list[str]:
    """The telling lines of a script that torchsleuth wrote; none of any other.

    >>> excerpt("EXPECTED = {}\\nx = 1\\nprint(\\"torchsleuth: compiling\\")\\ntry:\\n    f(x)\\nexcept Exception:")
    ['x = 1', 'f(x)']
    """
    lines = script.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith(_BEFORE)), None)
    after = next((i for i, line in enumerate(lines) if line.startswith(_AFTER)), None)
    if first is None or after is None or after < first:
        return []
    end = next((i for i, line in enumerate(lines) if i > after and line.startswith(_END)), len(lines))
    calls = textwrap.dedent("\n".join(line for line in lines[after + 1 : end] if line != "try:")).splitlines()
    found = [line.rstrip() for line in (*lines[first + 1 : after], *calls)]
    return [line for line in found if line]
