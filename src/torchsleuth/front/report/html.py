"""`report.html`: one case as one page that needs nothing else: no network, no other file, no script but its own.

Everything of the case is text to be escaped (autoescape is on and never switched off for it); the page's policy lets
only this file's own style and script run, by their hashes, so that even a hole in the escaping would run nothing.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from torchsleuth._version import __version__
from torchsleuth.core.cases.model import Triage
from torchsleuth.core.cases.printable import printable
from torchsleuth.core.cases.scrub import shortened
from torchsleuth.front.report import words
from torchsleuth.front.report.evidence import OBSERVED, Evidence
from torchsleuth.front.report.json_tables import JsonTable, json_tables
from torchsleuth.front.report.outline import outline, readable
from torchsleuth.script_runtime.hiding import hide_secrets, secret_values

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
    style, script = (_own(name) for name in ("report.css", "report.js"))
    works, gentler = words.to_paste(case)
    code = clean(triage.code or "")
    start, end = words.underlined(code, triage)
    graph = evidence.graph.thing
    secrets = secret_values(os.environ, sys.orig_argv)  # once: a page has thousands of texts
    return (
        _environment(secrets)
        .get_template("report.html.jinja")
        .render(
            version=__version__,
            case=case,
            triage=triage,
            evidence=evidence,
            words=words,
            readable=readable,
            style=Markup(style),
            script_text=Markup(script),
            policy=Markup(_policy(style, script)),
            code=(code[:start], code[start:end], code[end:]),
            works=works,
            gentler=gentler,
            repro=_head(evidence.repro.thing, _MOST_SCRIPT),
            traceback=_tail(evidence.traceback.thing, _MOST_TRACEBACK),
            log=_tail(evidence.log.thing, _MOST_LOG),
            environment=_head(evidence.environment.thing, _MOST_LOG),
            rungs=triage.rungs[:_MOST_ROWS],
            tried=(case.workarounds or ())[:_MOST_ROWS],
            outline=None if graph is None else outline(graph, case.triage),
            picture=_picture(evidence.picture.thing),
            analysis=json_tables(evidence.analysis.thing) if evidence.analysis.thing is not None else [],
            observed=_observed(evidence),
            begins=_told(case.to_json().get("analysis"), "words"),
            leaves=_leaves(case.extra.get("accuracy")),
            may_vary=_texts(case.extra.get("explanation"), "may_vary"),
            passes_with=_told(case.extra.get("explanation"), "passes_with"),
            verified_in=_told(case.extra, "verified_in"),
        )
    )


def clean(text: object, secrets: tuple[str, ...] | None = None) -> str:
    """Text of a case as a page may show it: no control characters, no secrets, no home folder.

    >>> clean("a\\x1b[31mb")
    'ab'
    """
    most = _MOST_SCRIPT + 100 if isinstance(text, _Long) else _MOST_TEXT
    return shortened(hide_secrets(printable(str(text), lines=True, most=most), secrets))


@functools.lru_cache(maxsize=1)
def _environment(secrets: tuple[str, ...]) -> jinja2.Environment:
    def safe(value: object) -> object:
        return value if isinstance(value, (Markup, jinja2.Undefined)) else clean(value, secrets)

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=safe,
    )


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


def _picture(svg: str | None) -> Markup | None:
    """As an image, in which no script runs and from which nothing is fetched."""
    if svg is None:
        return None
    return Markup("data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode())


def _observed(evidence: Evidence) -> list[Observed]:
    return [
        Observed(title, found.missing, tuple(json_tables(found.thing)) if found.thing is not None else ())
        for name, title in OBSERVED.items()
        for found in [evidence.observed[name]]
    ]


def _leaves(accuracy: Any) -> list[dict[str, Any]]:
    """What was compared, of a wrong result, the worst first."""
    verdict = accuracy.get("verdict") if isinstance(accuracy, dict) else None
    leaves = verdict.get("leaves") if isinstance(verdict, dict) else None
    found = [leaf for leaf in leaves if isinstance(leaf, dict)] if isinstance(leaves, list) else []
    return sorted(found, key=lambda leaf: leaf.get("kind") != "DIVERGED")[:40]


def _texts(doc: Any, key: str) -> list[str]:
    found = doc.get(key) if isinstance(doc, dict) else None
    return [str(each) for each in found[:20]] if isinstance(found, list) else []


def _told(doc: Any, key: str) -> str:
    found = doc.get(key) if isinstance(doc, dict) else None
    return found if isinstance(found, str) else ""
