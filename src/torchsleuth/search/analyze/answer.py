"""The parts of an analysis, as an `Analysis` with the user's lines."""

from __future__ import annotations

from collections.abc import Mapping

from torchsleuth.core.cases.analysis import Analysis, Culprit, RunDifference, merged_values
from torchsleuth.core.protocol.codec import Document
from torchsleuth.torch_core.graphs.source_line import SourceLine


def analysis_of(
    parts: Document,
    lines: Mapping[str, SourceLine],
    *,
    case: str = "",
    called_from: SourceLine | None = None,
) -> Analysis:
    """The analysis so far; `lines` has the user's line of each node, `called_from` the one to name where there is none.

    >>> analysis_of({"seen": {"calls": 3, "seen": 1}}, {}).calls
    3
    """
    seen = parts.get("seen") or {}
    differing = tuple(RunDifference(**each) for each in parts.get("nondeterministic") or [])
    places = {name: (line.place, line.module or None) for name, line in lines.items()}
    values = merged_values(parts.get("accumulated") or [], parts.get("local") or [], differing, places)
    return Analysis(
        case,
        values,
        _culprit(parts.get("culprit"), lines, called_from),
        outputs=parts.get("outputs") or {},
        calls=seen.get("calls", 0),
        seen=seen.get("seen", 0),
        why_not=seen.get("why_not"),
        nondeterministic=differing,
        fallbacks=parts.get("fallbacks") or {},
        skipped=parts.get("skipped") or {},
        seconds=parts.get("seconds") or {},
    )


def _culprit(
    found: Document | None, lines: Mapping[str, SourceLine], called_from: SourceLine | None
) -> Culprit | None:
    if found is None:
        return None
    line = lines.get(found["node"]) or lines.get(found["seen_at"]) or called_from
    known = {**found, "calls": tuple(found["calls"]), "also": tuple(found["also"])}
    if line is None:
        return Culprit(**known)
    return Culprit(
        **known,
        user_line=line.place,
        code=line.code or None,
        function=line.function or None,
        module=line.module or None,
        forward_op=(line.call or None) if line.gradient else None,
    )
