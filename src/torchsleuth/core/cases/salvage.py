"""What can still be read of a case that cannot be opened: of a later torchsleuth's, half-written, or a stranger's.

Only for looking at: nothing that is salvaged is written back or worked on.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from torchsleuth.core.cases.errors import CaseError, CaseNotFound, DamagedCase
from torchsleuth.core.cases.folder import CaseFolder, open_case
from torchsleuth.core.cases.model import ID, SCHEMA, Case, case_from_json
from torchsleuth.core.cases.reading import case_document

# What stands in the place of a field without which there is no case.
_INSTEAD: dict[str, Any] = {
    "schema": SCHEMA,
    "id": "00000000",
    "created": "",
    "torch": "unknown",
    "device": "unknown",
    "kind": "runtime_error",
    "phase": "run",
    "direction": None,
    "backend": "unknown",
    "after": None,
    "signature": {"kind": "runtime_error", "phase": "run", "message": "what failed cannot be read"},
}


def salvaged_case(cases_dir: Path | str, wanted: str) -> tuple[CaseFolder, tuple[str, ...]]:
    """The case, and what of it could not be read; raises where there is nothing that looks like a case.

    `salvaged_case("torchsleuth-cases", "last")[1] == ()` for a case that is whole.
    """
    try:
        return open_case(cases_dir, wanted), ()
    except CaseNotFound:
        raise
    except CaseError as why:
        path = getattr(why, "path", None)
        if path is None or not Path(path).is_dir():
            raise
        case, lost = _what_is_there(Path(path))
        return CaseFolder(Path(path), case), (str(why), *lost)


def _what_is_there(path: Path) -> tuple[Case, list[str]]:
    try:
        doc = case_document(path)
    except DamagedCase:
        doc = {}
    kept = dict(_INSTEAD, **({"id": path.name} if ID.fullmatch(path.name) else {}))
    lost = []
    fields = [field.name for field in dataclasses.fields(Case)]
    for name in fields:
        if name in ("schema", "extra") or name not in doc:
            continue
        try:
            case_from_json({**kept, name: doc[name]}, path)
        except DamagedCase as why:
            lost.append(f"{name} is left out: {why.why}")
        else:
            kept[name] = doc[name]
    more = {key: value for key, value in doc.items() if key not in fields}
    return case_from_json({**more, **kept}, path), lost
