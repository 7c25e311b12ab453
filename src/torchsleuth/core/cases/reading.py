"""One case.json read from disk, with every way it can be unreadable told apart."""

from pathlib import Path
from typing import Any

from torchsleuth.core.cases.door import NotRead, json_inside
from torchsleuth.core.cases.errors import DamagedCase
from torchsleuth.core.cases.model import MAX_BYTES, Case, case_from_json


def read_case(folder: Path) -> Case:
    """The case in this folder: `read_case(Path("torchsleuth-cases/1a2b3c4d")).kind`."""
    return case_from_json(case_document(folder), folder)


def case_document(folder: Path) -> dict[str, Any]:
    """The JSON object in a folder's case.json, not yet checked field by field."""
    try:
        doc = json_inside(folder, "case.json", MAX_BYTES)
    except NotRead as failure:
        raise DamagedCase(folder, str(failure)) from failure
    if not isinstance(doc, dict):
        raise DamagedCase(folder, "case.json is not a JSON object")
    return doc
