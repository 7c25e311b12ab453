"""The trace as one HTML file that stands alone: searchable, nothing fetched, everything of the program's as text.

The data is JSON in the page; a frame's tree is made when it is opened, so that a page with hundreds opens at once.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from pathlib import Path

from torchsleuth.front.observe.trace_tree import Trace

_TEMPLATES = Path(__file__).parent / "templates"


def trace_files(trace: Trace) -> dict[str, str]:
    """A trace as files beside its document: the page.

    >>> list(trace_files(Trace(())))
    ['trace.html']
    """
    return {"trace.html": trace_page("What the capture did", trace)}


def trace_page(title: str, trace: Trace) -> str:
    """The page with this title: `trace_page("trace of train.py", trace)`."""
    script = (_TEMPLATES / "trace.js").read_text(encoding="utf-8")
    parts = {
        "TITLE": html.escape(title),
        "HASH": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "SCRIPT": script,
        "DATA": json.dumps(trace.to_json()["frames"]).replace("<", "\\u003c"),
    }
    page = (_TEMPLATES / "trace.html").read_text(encoding="utf-8")
    return re.sub("@(TITLE|HASH|SCRIPT|DATA)@", lambda found: parts[found[1]], page)
