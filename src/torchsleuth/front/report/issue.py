"""`issue.md`: the case as a report to PyTorch, under the headings of its own template, with nothing private in it.

What a machine wrote stands between marks that say so and name the version; the person's own words have a place before
it. Text of the case stays text: in fences longer than any in it, or with what Markdown and HTML would obey escaped.
"""

from __future__ import annotations

import ast
import os
import re
import socket
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote_plus

import jinja2

from torchsleuth._version import __version__
from torchsleuth.core.cases.model import Case, Triage, best_workaround
from torchsleuth.core.cases.scrub import INSTALLED, last_part, path_of_machine, printable, scrubbed
from torchsleuth.front.report import words
from torchsleuth.front.report.evidence import Evidence

# GitHub takes 65,536.
MOST = 60_000
_MOST_REPRO, _MOST_VERSIONS, _MOST_PASTED, _MOST_LINE, _MOST_CELL, _MOST_RUNGS = (
    20_000,
    4_000,
    4_000,
    500,
    120,
    30,
)
_MOST_FILES = 20
# As much of the error as there is room for.
_MOST_ERROR = (12_000, 6_000, 1_000)
_VALUES = re.compile(r"with_name\('([^']+)'\)")
# Names of users and machines that are words of every error as well.
_WORDS = {"root", "user", "host", "localhost", "torch", "python", "model", "device", "test", "build", "admin"}


def issue(evidence: Evidence) -> str:
    """The text to file: `Path("issue.md").write_text(issue(gather(folder)))`."""
    texts = (_issue(evidence, most) for most in _MOST_ERROR)
    return next(text for text in texts if len(text) <= MOST)


def _issue(evidence: Evidence, most_error: int) -> str:
    case = evidence.folder.case
    triage = case.triage or Triage()
    taken = _Taken(_files_of(case))
    repro = _repro(evidence, taken)
    shown = best_workaround(case.workarounds or ())
    explanation = case.extra.get("explanation")
    explained = explanation if isinstance(explanation, dict) else {}
    varies = explained.get("may_vary")
    return _template().render(
        title=_title(evidence, taken),
        what=taken.prose(words.what_happened(case, evidence.traceback.thing or "")),
        mark=_mark,
        fenced=_fenced,
        about_repro=taken.prose(f"{words.how_sure(case)}; {words.made_small(case)}"),
        repro=repro,
        no_repro=taken.prose(_no_repro(evidence)),
        may_vary=taken.prose("; ".join(map(str, varies)) if isinstance(varies, list) else ""),
        passes_with=taken.prose(str(explained.get("passes_with") or "")),
        where=taken.prose(words.whose_bug(case) + (f"; {triage.detail}" if triage.detail else "")),
        line=taken.prose(triage.user_line or "") if triage.code else "",
        code=taken.text("line.py", triage.code or "", _MOST_LINE),
        rungs=[
            (taken.prose(rung.what, _MOST_CELL), taken.prose(rung.answer, _MOST_CELL))
            for rung in triage.rungs[:_MOST_RUNGS]
        ],
        no_rungs="" if triage.component else taken.prose(triage.error or "it was not looked into"),
        workaround=taken.prose(words.about_workaround(shown) if shown else words.no_workaround(case)),
        paste=taken.text("paste.py", shown.how, _MOST_PASTED) if shown else "",
        search=taken.text("search", search_link(case), _MOST_LINE).replace("--", "%2D%2D"),
        labels=", ".join(taken.prose(each, _MOST_CELL) for each in triage.labels[:10]),
        error=_error(evidence, taken, most_error),
        versions=_versions(evidence, taken),
        removed=taken.lines(),
    )


@dataclass
class _Taken:
    """Takes out what is private, and remembers what was taken out and how often.

    `files` are those of the program: torch shortens long paths from the left, so that only their ends tell them.
    """

    files: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)

    def text(self, name: str, text: str, most: int) -> str:
        """A text for a fence, without control characters."""
        return self._without(name, printable(text, lines=True, most=most)).rstrip()

    def prose(self, text: str, most: int = _MOST_LINE) -> str:
        """A text that Markdown, HTML and mentions leave as it is."""
        return _plain(self._without("prose", printable(words.one_line(text), most=most)))

    def lines(self) -> list[str]:
        times = {what: "once" if count == 1 else f"{count} times" for what, count in self.counts.items()}
        return [f"- {what}: {often}" for what, often in times.items()] or ["- nothing"]

    def _without(self, name: str, text: str) -> str:
        code = name.endswith(".py")
        text = self._less("secrets", text, scrubbed(name if code else "text", text, everywhere=True))
        if code:  # only in strings and comments, so that it stays the program it was
            text = self._replaced("paths of the machine", path_of_machine(quoted=True), last_part, text)
            return "".join(map(self._prose_of_code, text.splitlines(keepends=True)))
        text = self._replaced("folders of installed packages", INSTALLED, "", text)
        text = self._replaced("paths of the machine", path_of_machine(), last_part, text)
        for file in self.files:
            cut_path = re.compile(rf"(?<![\w.+@%~/-])[\w.+@%~/-]*/{re.escape(file)}(?![\w.])")
            text = self._replaced("paths of the machine", cut_path, last_part, text)
        for what, own in (("host", socket.gethostname()), ("user", _user())):
            if len(own) > 2 and own.lower() not in _WORDS:
                name_of = re.compile(rf"(?<!\w){re.escape(own)}(?!\w)")
                text = self._replaced(f"the {what}'s name", name_of, what, text)
        return text

    def _prose_of_code(self, line: str) -> str:
        if not line.lstrip().startswith(("#", '"""')):
            return line
        return self._replaced("paths of the machine", path_of_machine(), last_part, line)

    def _less(self, what: str, before: str, after: str) -> str:
        gone = after.count("<hidden>") - before.count("<hidden>")
        self.count(what, max(0, gone))
        self.count("the home folder or the user's name", int(gone <= 0 and after != before))
        return after

    def _replaced(self, what: str, pattern: re.Pattern[str], by: object, text: str) -> str:
        text, count = pattern.subn(by, text)  # type: ignore[call-overload]
        self.count(what, count)
        return text

    def count(self, what: str, count: int) -> None:
        if count:
            self.counts[what] = self.counts.get(what, 0) + count


def _user() -> str:
    return os.path.basename(os.path.expanduser("~"))


def _title(evidence: Evidence, taken: _Taken) -> str:
    case = evidence.folder.case
    text = taken.text("title", title(case, evidence.traceback.thing or ""), _MOST_LINE)
    # It stands in a comment, which nothing in it may end.
    return textwrap.shorten(text.translate({ord("<"): "‹", ord(">"): "›"}), _MOST_CELL, placeholder=" …")


_DOES = {
    "accuracy": "gives wrong results",
    "compile_error": "stops",
    "runtime_error": "makes code that raises an error",
    "crash": "crashes",
    "hang": "never finishes",
    "capture_error": "fails to capture",
}


def title(case: Case, error: str = "") -> str:
    """What is at fault, what it does, and with which operators: a title for those who know that part.

    >>> from torchsleuth.core.cases.model import Triage
    >>> from types import SimpleNamespace as Of
    >>> blamed = Triage("inductor", "fuse_attention: _sfdp_pattern_2", ops=("operator.matmul",))
    >>> title(Of(triage=blamed, kind="accuracy", minified=None))
    '[inductor] fuse_attention: _sfdp_pattern_2 gives wrong results for operator.matmul'
    """
    triage = case.triage
    if triage is None or triage.component is None:
        return words.what_happened(case, error)
    part = triage.part if triage.part and triage.part != triage.component else triage.component
    ops = min((triage.ops, case.minified.ops if case.minified else ()), key=lambda found: len(found) or 99)
    for_ops = f" for {words.some(ops, 3)}" if ops else ""
    said = "" if case.kind in ("accuracy", "crash", "hang") else f": {words.said(case, error)}"
    return f"[{triage.component}] {part} {_DOES.get(case.kind, 'fails')}{for_ops}{said}"


def search_words(case: Case) -> str:
    """What to look for among known issues: `"_sfdp_pattern_2 wrong results torch.compile"`."""
    triage = case.triage or Triage()
    part = (triage.part or "").rpartition(": ")[2]
    named = [part] if part and part not in (triage.component, "capture") else []
    ops = [op.removesuffix(".default").rpartition(".")[2] for op in triage.ops[:2]]
    message = case.signature.message.replace("#", " ") if case.kind != "accuracy" else "wrong results"
    return " ".join(dict.fromkeys([*named, *ops, *message.split()[:8]]))[:120]


def search_link(case: Case) -> str:
    """Where PyTorch's known issues with these words are: an address to open."""
    return f"https://github.com/pytorch/pytorch/issues?q={quote_plus('is:issue ' + search_words(case))}"


_COMPARES = re.compile(r"torch\.allclose\((\w+), (\w+), (.*?), equal_nan=True\)")


def as_maintainers_write_it(script: str) -> str | None:
    """A repro without what gives a verdict on it: the same calls, in the end the error itself or `assert_close`.

    None where the script is none that can be told so.
    """
    lines = script.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith("EXPECTED = ")), None)
    after = next((i for i, line in enumerate(lines) if line.startswith('print("torchsleuth: ')), None)
    tries = next((i for i, line in enumerate(lines) if i > (after or 0) and line == "try:"), None)
    end = next((i for i, line in enumerate(lines) if i > (tries or 0) and line.startswith("except ")), None)
    if first is None or after is None or tries is None or end is None or not first < after < tries < end:
        return None
    calls = [
        line
        for line in textwrap.dedent("\n".join(lines[tries + 1 : end])).splitlines()
        if "torchsleuth: " not in line
    ]
    compared = _COMPARES.search("\n".join(lines[end:]))
    wrong = "wrong" in "\n".join(lines[:first]).partition("\n")[0]
    if wrong != bool(compared):
        return None
    if compared is not None:
        near = compared[3] if "=" in compared[3] else "rtol={}, atol={}".format(*compared[3].split(", "))
        close = f"torch.testing.assert_close({compared[2]}, {compared[1]}, {near}, equal_nan=True)"
        if compared[1] == "a":  # of several results
            tensor = "    if torch.is_tensor(a):\n        " if " if torch.is_tensor(a)" in script else "    "
            close = f"for a, b in zip(wanted, got):\n{tensor}{close}"
        calls.append(close)
    imports = [line for line in lines[:first] if line.startswith(("import ", "from "))]
    rest = [*lines[first + 1 : after], *calls]
    kept = [
        line
        for line in imports
        if line not in ("import sys", "import sys, traceback") or "sys." in "\n".join(rest)
    ]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join([*kept, "", *rest])).strip()
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    return text


def _files_of(case: Case) -> tuple[str, ...]:
    """The names of the program's files that the case tells of: `("train.py", "model.py")`."""
    line = (case.triage.user_line or "",) if case.triage else ()
    lines = [*line, *(case.graph.source_lines if case.graph else ())]
    names = [place.rpartition(":")[0] for place in lines] + [
        os.path.basename(word) for word in case.script[:1]
    ]
    return tuple(dict.fromkeys(name for name in names if name.endswith(".py")))[:_MOST_FILES]


def _repro(evidence: Evidence, taken: _Taken) -> str:
    text = evidence.repro.thing
    if text is None or evidence.script != "repro.py" or len(text) > _MOST_REPRO:
        return ""
    for name in dict.fromkeys(_VALUES.findall(text)):
        taken.count(f"values in {_plain(name)}, which the script reads: attach the file if you may", 1)
    return taken.text("repro.py", as_maintainers_write_it(text) or text, _MOST_REPRO)


def _no_repro(evidence: Evidence) -> str:
    if evidence.repro.missing or evidence.repro.thing is None:
        return evidence.repro.missing
    if evidence.script != "repro.py":
        return f"it was not made smaller; attach {evidence.script}"
    return "it is too long for an issue; attach it"


def _error(evidence: Evidence, taken: _Taken, most: int) -> str:
    text = evidence.traceback.thing
    if not text:
        return taken.text("error.txt", evidence.folder.case.signature.summary, _MOST_LINE)
    cut = text if len(text) <= most else f"[{len(text) - most} characters before]\n{text[-most:]}"
    return taken.text("traceback.txt", cut, most + 100)


def _versions(evidence: Evidence, taken: _Taken) -> str:
    case = evidence.folder.case
    backend = "" if case.backend == "none" else f", backend {case.backend}"
    kept = [f"torch {case.torch}{backend}, device {case.device}", f"torchsleuth {__version__}"]
    for line in (evidence.environment.thing or "").splitlines():
        if re.match(r"[A-Z][A-Z0-9_]*=.*/", line):
            taken.count("variables that hold a path", 1)
        elif not line.startswith("torch "):
            kept.append(line)
    return taken.text("environment.txt", "\n".join(kept), _MOST_VERSIONS)


def _fenced(text: str, language: str) -> str:
    """A code block that nothing in the text can end."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _plain(text: str) -> str:
    text = re.sub(r"([\\`*_{}\[\]<>#|~!$])", r"\\\1", text)
    return re.sub(r"@(?=\w)", "@\u200b", text)  # nobody is called


def _mark(which: str) -> str:
    return f"<!-- {which}: written by torchsleuth {__version__}, not by a person -->"


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=False,  # it writes Markdown, whose text `_Taken` and `_fenced` make safe
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("issue.md.jinja")
