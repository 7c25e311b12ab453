"""`<cases>/runs/<run id>/`: what one observed run left for a person, beside the cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torchsleuth.core.cases.errors import error_of_oserror
from torchsleuth.core.cases.scrub import scrubbed
from torchsleuth.core.protocol.files import write_whole

RUNS = "runs"


def run_folder(cases_dir: Path, run_id: str) -> Path:
    """The folder of a run, made where it is missing: `run_folder(Path("cases"), "20260101-120000-abcdef")`."""
    folder = cases_dir.absolute() / RUNS / run_id
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as failure:
        raise error_of_oserror(cases_dir, failure) from failure
    return folder


def write_result(folder: Path, name: str, result: Any) -> Path:
    """Writes text, or anything else as JSON, in one piece and without secrets.

    Used as `write_result(folder, "breaks.json", document)`.
    """
    text = result if isinstance(result, str) else json.dumps(result, indent=1)
    path = folder / name
    try:
        write_whole(path, scrubbed(name, text))
    except OSError as failure:
        raise error_of_oserror(folder, failure) from failure
    return path
