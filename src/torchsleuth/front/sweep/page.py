"""The table of a sweep as one HTML page: programs by settings, and the failures in buckets. No script, no network.

Everything on it comes from programs and their failures, so all of it is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from torchsleuth.core.cases.printable import printable
from torchsleuth.core.protocol.files import write_whole
from torchsleuth.script_runtime.hiding import hide_secrets

# Of a repro, what is shown on the page; all of it lies in the case.
MOST_OF_A_SCRIPT = 20_000


def page_of(document: Mapping[str, Any], scripts: Mapping[str, str]) -> str:
    """The page; `scripts` are the repros by bucket: `page_of(document_of(sweep, known), {})`."""
    eager = {(cell["program"], cell["setting"]): cell for cell in document["eager"]}
    cells = {(cell["program"], cell["setting"]): cell for cell in document["cells"]}
    numbers = {
        each["key"]: number
        for number, bucket in enumerate(document["buckets"], 1)
        for each in (bucket, *bucket["same"])
    }
    columns = list(dict.fromkeys(cell["setting"] for cell in document["eager"]))
    rows = [
        (
            program,
            [eager.get((program, column)) for column in columns],
            [cells.get((program, setting)) for setting in document["settings"]],
        )
        for program in document["programs"]
    ]
    environment = Environment(
        loader=PackageLoader("torchsleuth.front.sweep"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["safe_text"] = lambda text: hide_secrets(printable(str(text), True, MOST_OF_A_SCRIPT))
    return environment.get_template("sweep.html.jinja").render(
        document=document,
        rows=rows,
        columns=columns,
        numbers=numbers,
        scripts=scripts,
        others=others_in_words(document),
    )


def others_in_words(document: Mapping[str, Any]) -> list[str]:
    """What came of the runs that do not pass, for terminal and page.

    >>> others_in_words({"counts": {"fails": 3, "late": 0, "program": 1, "not run": 0}, "buckets": [{}, {}]})
    ['3 fail in 2 different ways', '1 left out because the program fails without the compiler, too']
    """
    ways = len(document["buckets"])
    said = {
        "fails": f"fail in {ways} different ways" if ways != 1 else "fail in one way",
        "late": "not done in time",
        "program": "left out because the program fails without the compiler, too",
        "not run": "not run",
    }
    return [f"{number} {what}" for key, what in said.items() if (number := document["counts"][key])]


def write_page(folder: Path, document: Mapping[str, Any], scripts: Mapping[str, str]) -> Path:
    """Writes sweep.html, of which a browser never sees half; where it lies."""
    path = folder / "sweep.html"
    write_whole(path, page_of(document, scripts))
    return path
