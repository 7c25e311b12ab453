"""`report.html`: one case as one page that needs nothing else: no network, no other file, no script but its own.

Everything of the case is text to be escaped (autoescape is on and never switched off for it); the page's policy lets
only this file's own style and script run, by their hashes, so that even a hole in the escaping would run nothing.
The captured graph is shown in the order it runs, folded by module, open where the fault is (`outline`); JSON that other
verbs left is shown as bounded tables, without knowing its every field (`json_tables`).
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from torchsleuth._version import __version__
from torchsleuth.core.cases.folder import CaseFolder, put_files
from torchsleuth.core.cases.model import Triage, best_workaround
from torchsleuth.core.cases.scrub import hidden, printable, shortened
from torchsleuth.front.report import words
from torchsleuth.front.report.drawing import Drawing
from torchsleuth.front.report.evidence import OBSERVED, Evidence, gather
from torchsleuth.front.report.graph_reading import Call, Graph
from torchsleuth.front.report.issue import issue, search_link
from torchsleuth.script_runtime.hiding import secret_values

_TEMPLATES = Path(__file__).parent / "templates"
_MOST_ROWS = 60
_MOST_SCRIPT, _MOST_TRACEBACK, _MOST_LOG, _MOST_TEXT = 100_000, 40_000, 10_000, 4_000


class _Long(str):
    """A text whose length was seen to."""

    __slots__ = ()


@dataclass(frozen=True)
class Observed:
    """One section about the observed run: its tables, or why there are none."""

    title: str
    missing: str
    tables: tuple[JsonTable, ...]


def page(evidence: Evidence) -> str:
    """The whole page: `Path("report.html").write_text(page(gather(folder)))`."""
    case = evidence.folder.case
    triage = case.triage or Triage()
    code = clean(triage.code or "")
    start, end = words.underlined(code, triage)
    graph = evidence.graph.thing
    leaves, begins = _leaves(case.extra.get("accuracy")), _told(case.to_json().get("analysis"), "words")
    observed = _observed(evidence)
    sections = {
        ("summary", "Summary"): True,
        ("repro", "Repro"): evidence.repro.thing is not None,
        ("drawn", "Minimal graph"): evidence.drawing.thing is not None,
        ("tried", "What was tried"): triage.rungs,
        ("workarounds", "Workarounds"): case.workarounds,
        ("numbers", "Numbers"): leaves or begins,
        ("graph", "Full graph"): graph is not None,
        ("run", "The run"): any(each.tables for each in observed),
        ("error", "Error"): evidence.traceback.thing,
        ("environment", "Environment"): True,
    }
    return render(
        "report.html.jinja",
        title=f"case {case.id}",
        headline=words.what_happened(case, evidence.traceback.thing or ""),
        sections=[name for name, there in sections.items() if there],
        warnings=evidence.lost,
        alone=None,
        case=case,
        triage=triage,
        evidence=evidence,
        words=words,
        readable=readable,
        code=(code[:start], code[start:end], code[end:]),
        works=best_workaround(case.workarounds or ()),
        programs=words.is_the_programs(case),
        search=search_link(case).removeprefix("https://"),
        repro=_head(evidence.repro.thing, _MOST_SCRIPT),
        traceback=_tail(evidence.traceback.thing, _MOST_TRACEBACK),
        log=_tail(evidence.log.thing, _MOST_LOG),
        environment=_head(evidence.environment.thing, _MOST_LOG),
        rungs=triage.rungs[:_MOST_ROWS],
        tried=(case.workarounds or ())[:_MOST_ROWS],
        outline=None if graph is None else outline(graph, case.triage),
        picture=as_image(evidence.picture.thing) if _grows(evidence.analysis.thing) else None,
        analysis=json_tables(evidence.analysis.thing) if evidence.analysis.thing is not None else [],
        observed=observed,
        begins=begins,
        leaves=leaves,
        may_vary=_texts(case.extra.get("explanation"), "may_vary"),
        passes_with=_told(case.extra.get("explanation"), "passes_with"),
        verified_in=_told(case.extra, "verified_in"),
    )


def render(
    template: str,
    *,
    title: str,
    headline: str,
    sections: Sequence[tuple[str, str]],
    warnings: Sequence[str] = (),
    own: Sequence[str] = ("page.js",),
    **values: object,
) -> str:
    """A page in the one style: its sections, by id and name, are the navigation.

    Used as `render("cases.html.jinja", title="cases", headline="3 cases", sections=[("cases", "Cases")], cases=found)`.
    """
    style = _own("page.css")
    script = "\n".join(_own(name) for name in own)
    environment = _environment(
        secret_values(os.environ, sys.orig_argv)
    )  # once: a page has thousands of texts
    return environment.get_template(template).render(
        version=__version__,
        title=title,
        headline=headline,
        sections=sections,
        warnings=warnings,
        style=Markup(style),
        script_text=Markup(script),
        policy=Markup(_policy(style, script)),
        **values,
    )


_GRAPH_STYLE = """
svg{background:#fff}rect{fill:#fff;stroke:#57606a}.input rect{stroke-dasharray:4 3}.call rect{fill:#f6f8fa}
text{fill:#1f2328;font:12px monospace;text-anchor:middle}.below{fill:#57606a;font-size:10.5px}
path{fill:none;stroke:#57606a;stroke-width:1.3}marker path{fill:#57606a;stroke:none}
"""


def graph_svg(drawing: Drawing) -> str:
    """A drawing of a graph as a file of its own: `graph_svg(draw(read_graph(text)))`."""
    secrets = secret_values(os.environ, sys.orig_argv)
    template = _environment(secrets).get_template("graph.svg.jinja")
    return template.render(drawing=drawing, alone=Markup(_GRAPH_STYLE)) + "\n"


def clean(text: object, secrets: tuple[str, ...] | None = None) -> str:
    """Text of a case as a page may show it: no control characters, no secrets, no home folder.

    >>> clean("a\\x1b[31mb")
    'ab'
    """
    most = _MOST_SCRIPT + 100 if isinstance(text, _Long) else _MOST_TEXT
    return shortened(hidden(printable(str(text), lines=True, most=most), secrets))


@functools.lru_cache(maxsize=1)
def _environment(secrets: tuple[str, ...]) -> jinja2.Environment:
    def safe(value: object) -> object:
        return value if isinstance(value, (Markup, jinja2.Undefined)) else clean(value, secrets)

    def prose(value: object) -> Markup:
        """A sentence: what stands between backticks in it is code."""
        parts = clean(value, secrets).split("`")
        paired = [f"<code>{escape(part)}</code>" if at % 2 else escape(part) for at, part in enumerate(parts)]
        return Markup("".join(paired)) if len(parts) % 2 else escape("`".join(parts))

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=safe,
    )
    environment.filters["prose"] = prose
    return environment


def _own(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    own = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; style-src 'sha256-{own[0]}'; script-src 'sha256-{own[1]}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _head(text: str | None, most: int) -> _Long:
    if text is None or len(text) <= most:
        return _Long(text or "")
    return _Long(f"{text[:most]}\n# … {len(text) - most} more characters in the case's folder")


def _tail(text: str | None, most: int) -> _Long:
    if text is None or len(text) <= most:
        return _Long(text or "")
    return _Long(f"… {len(text) - most} characters before\n{text[-most:]}")


def _grows(analysis: object) -> bool:
    """Whether an analysis has points enough for a line: two are told better by the table."""
    values = analysis.get("values") if isinstance(analysis, dict) else None
    return not isinstance(values, list) or len(values) >= 3


def as_image(svg: str | None) -> Markup | None:
    """A drawing as the address of an image, in which no script runs and from which nothing is fetched."""
    if svg is None:
        return None
    return Markup("data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode())


def _observed(evidence: Evidence) -> list[Observed]:
    return [
        Observed(title, found.missing, tuple(json_tables(found.thing)) if found.thing is not None else ())
        for name, title in OBSERVED.items()
        for found in [evidence.observed[name]]
    ]


def _leaves(accuracy: object) -> list[dict[str, object]]:
    """What was compared, of a wrong result, the worst first."""
    verdict = accuracy.get("verdict") if isinstance(accuracy, dict) else None
    leaves = verdict.get("leaves") if isinstance(verdict, dict) else None
    found = [leaf for leaf in leaves if isinstance(leaf, dict)] if isinstance(leaves, list) else []
    return sorted(found, key=lambda leaf: leaf.get("kind") != "DIVERGED")[:40]


def _texts(doc: object, key: str) -> list[str]:
    found = doc.get(key) if isinstance(doc, dict) else None
    return [str(each) for each in found[:20]] if isinstance(found, list) else []


def _told(doc: object, key: str) -> str:
    found = doc.get(key) if isinstance(doc, dict) else None
    return found if isinstance(found, str) else ""


# A page with more rows, or longer ones, takes too long to open.
MOST_CALLS = 4000
_MOST_CHARACTERS, _MARKUP = 480_000, 110
_SHORTEST, _LONGEST = 40, 240
_AROUND = 2
# Where more nodes are blamed than this, none is.
_MOST_BLAMED = 40
_DEEPEST = 12
# What Dynamo calls a parameter or a buffer of the model.
_ATTRIBUTE = re.compile(r"\bl_self_\w+_\b")
_BETWEEN = re.compile(r"_(?:modules|parameters|buffers)_")


@dataclass(frozen=True)
class Row:
    """One call, or, with `place`, the user's line that calls after it come from; `mark`: culprit, near or empty."""

    text: str
    shape: str = ""
    mark: str = ""
    place: str = ""


@dataclass
class Group:
    """Calls of one module that run after each other, and of the modules in it."""

    name: str
    items: list[Row | Group] = field(default_factory=list)
    calls: int = 0
    open: bool = False


@dataclass(frozen=True)
class Outline:
    """The groups, how many calls are left out before and after, and how many are marked."""

    top: Group
    before: int
    after: int
    culprits: int


def outline(graph: Graph, triage: Triage | None) -> Outline:
    """The graph folded by module: `outline(graph, case.triage).top.items`."""
    culprits = _culprits(graph, triage or Triage())
    near = _neighbours(graph.calls, culprits)
    first = min(culprits, default=0)
    start = max(0, min(first - MOST_CALLS // 2, len(graph.calls) - MOST_CALLS))
    shown = range(start, min(len(graph.calls), start + MOST_CALLS))
    longest = max(_SHORTEST, min(_LONGEST, _MOST_CHARACTERS // max(1, len(shown)) - _MARKUP))
    top = Group("", open=True)
    stack = [top]
    place = ""
    for number in shown:
        call = graph.calls[number]
        mark = "culprit" if number in culprits else "near" if number in near else ""
        before = stack[-1]
        _enter(stack, call.module)
        if call.place and (call.place != place or stack[-1] is not before):
            stack[-1].items.append(Row(_cut(call.code, longest), place=call.place))
        place = call.place
        stack[-1].items.append(Row(_cut(readable(call.text), longest), _cut(call.shape, 60), mark))
        for group in stack:
            group.calls += 1
            group.open |= bool(mark)
    return Outline(top, start, len(graph.calls) - len(shown) - start, len(culprits))


def readable(text: str) -> str:
    """Inputs under the names they have in the model.

    >>> readable("linear(x, l_self_modules_head_modules_0_parameters_weight_)")
    'linear(x, self.head.0.weight)'
    """
    return _ATTRIBUTE.sub(lambda found: _BETWEEN.sub(".", found[0][2:-1]), text)


def _culprits(graph: Graph, triage: Triage) -> set[int]:
    """The calls at fault; where triage named none or too many, those of the line at fault."""
    blamed = {*triage.nodes} if len(triage.nodes) <= _MOST_BLAMED else set()
    found = {number for number, call in enumerate(graph.calls) if call.name in blamed}
    if not found and triage.user_line:
        found = {number for number, call in enumerate(graph.calls) if call.place == triage.user_line}
    return found if len(found) <= _MOST_BLAMED else set()


def _neighbours(calls: Sequence[Call], culprits: set[int]) -> set[int]:
    """What a culprit uses, what uses it, and what runs right before and after it."""
    names = {calls[number].name for number in culprits}
    used = {name for number in culprits for name in calls[number].uses}
    near = {
        number for number, call in enumerate(calls) if call.name in used or not names.isdisjoint(call.uses)
    }
    around = {number + by for number in culprits for by in range(-_AROUND, _AROUND + 1)}
    return (near | around) - culprits


def _enter(stack: list[Group], module: str) -> None:
    """Leaves groups until the module is below the last one, then opens what is missing."""
    path = module.split(".")[:_DEEPEST] if module else []
    names = [".".join(path[: depth + 1]) for depth in range(len(path))]
    while len(stack) > 1 and stack[-1].name not in names:
        stack.pop()
    for name in names[len(stack) - 1 :]:
        group = Group(name)
        stack[-1].items.append(group)
        stack.append(group)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


MOST_TABLES, MOST_ROWS, MOST_COLUMNS, MOST_INSIDE, LONGEST = 6, 60, 10, 6, 240


@dataclass(frozen=True)
class JsonTable:
    """Rows of text under columns; `more` rows are left out."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: int = 0


def json_tables(doc: object) -> list[JsonTable]:
    """The plain facts of a document, then a table for each list in it.

    >>> [table.columns for table in json_tables({"n": 1, "breaks": [{"line": 3, "why": "print"}]})]
    [('what', 'is'), ('line', 'why')]
    """
    if isinstance(doc, list):
        doc = {"": doc}
    if not isinstance(doc, Mapping):
        doc = {"": doc}
    lists = {key: value for key, value in doc.items() if isinstance(value, list) and value}
    facts = [(str(key), _text(value)) for key, value in doc.items() if key not in lists]
    tables = []
    if facts:
        tables.append(JsonTable("", ("what", "is"), tuple(facts[:MOST_ROWS]), max(0, len(facts) - MOST_ROWS)))
    tables += [_table(str(key), value) for key, value in lists.items()]
    return tables[:MOST_TABLES]


def _table(title: str, rows: Sequence[object]) -> JsonTable:
    shown, more = rows[:MOST_ROWS], max(0, len(rows) - MOST_ROWS)
    objects = [row for row in shown if isinstance(row, Mapping)]
    if len(objects) < len(shown):
        return JsonTable(title, ("",), tuple((_text(row),) for row in shown), more)
    columns = tuple(dict.fromkeys(str(key) for row in objects for key in row))[:MOST_COLUMNS]
    return JsonTable(
        title, columns, tuple(tuple(_text(row.get(name, "")) for name in columns) for row in objects), more
    )


def _text(value: object) -> str:
    text = _words(value, 3)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _words(value: object, depth: int) -> str:
    """A value in words: a place as `model.py:9 code`, several as a list, what is too deep left out."""
    if value is None or value == "" or depth < 0:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        shown = [_words(each, depth - 1) for each in value[:MOST_INSIDE]]
        rest = [f"{len(value) - MOST_INSIDE} more"] if len(value) > MOST_INSIDE else []
        return ", ".join([each for each in shown if each] + rest)
    if isinstance(value, Mapping):
        if isinstance(value.get("file"), str) and isinstance(value.get("line"), int):
            return f"{os.path.basename(value['file'])}:{value['line']} {value.get('code') or ''}".rstrip()
        inside = [(str(key), _words(each, depth - 1)) for key, each in list(value.items())[:MOST_INSIDE]]
        return "; ".join(f"{key} {each}" for key, each in inside if each)
    return str(value)


PAGE, ISSUE = "report.html", "issue.md"


def write_report(
    folder: CaseFolder, lost: tuple[str, ...] = (), into: Path | None = None
) -> tuple[Path, Path | None]:
    """Writes page and issue text, and says where: `write_report(open_case("cases", "last"))`.

    `lost` is what of the case could not be read; it stands at the top of the page. A failure of the program's own has
    no issue text: PyTorch has nothing to do with it.
    """
    evidence = gather(folder, lost)
    target = into or folder.path
    texts = {PAGE: page(evidence)}
    if not words.is_the_programs(folder.case):
        texts[ISSUE] = issue(evidence)
    put_files(target, texts)
    return target / PAGE, target / ISSUE if ISSUE in texts else None
