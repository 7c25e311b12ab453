"""One case.json read from disk, with every way it can be unreadable told apart."""

import json
from pathlib import Path
from typing import Any

from torchsleuth.cases.errors import DamagedCase
from torchsleuth.cases.model import MAX_BYTES, Case, case_from_json


def read_case(folder: Path) -> Case:
    """The case in this folder: `read_case(Path("torchsleuth-cases/1a2b3c4d")).kind`."""
    return case_from_json(case_document(folder), folder)


def case_document(folder: Path) -> dict[str, Any]:
    """The JSON object in a folder's case.json, not yet checked field by field."""
    try:
        with open(folder / "case.json", "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as failure:
        raise DamagedCase(folder, f"case.json cannot be opened ({failure.strerror or failure})") from failure
    if len(raw) > MAX_BYTES:
        raise DamagedCase(folder, f"case.json is larger than {MAX_BYTES >> 20} MiB")
    try:
        doc = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        raise DamagedCase(folder, "case.json is nested too deeply") from None
    except ValueError as failure:
        raise DamagedCase(folder, f"case.json is not JSON ({failure})") from None
    if not isinstance(doc, dict):
        raise DamagedCase(folder, "case.json is not a JSON object")
    return doc


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")
