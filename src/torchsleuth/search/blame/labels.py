"""The finding as PyTorch's own triage labels, for the text of an issue."""

from __future__ import annotations

from torchsleuth.core.cases.model import Case, Triage

_COMPONENT = {
    "dynamo": ("module: dynamo",),
    "aot_autograd": ("module: pt2-dispatcher",),
    "decompositions": ("module: decompositions",),
    "inductor": ("module: inductor",),
}


def labels_of(case: Case, triage: Triage, *, only_dynamic: bool = False) -> tuple[str, ...]:
    """The labels a PyTorch engineer would put on the issue; none where the bug is not PyTorch's.

    >>> labels_of(case, Triage(component="inductor", part="lowering"))
    ('oncall: pt2', 'module: inductor', 'oncall: cpu inductor')
    """
    # A custom pass is the user's own.
    if triage.component not in _COMPONENT or "custom" in (triage.part or ""):
        return ()
    found = ["oncall: pt2", *_COMPONENT[triage.component]]
    if triage.component == "inductor" and case.device == "cpu":
        found.append("oncall: cpu inductor")
    if only_dynamic:
        found.append("module: dynamic shapes")
    if triage.subsystem == "cudagraphs":
        found.append("module: cuda graphs")
    if triage.part == "fake kernel":
        found.append("module: custom-operators")
    if case.kind in ("accuracy", "crash"):
        found.append("triage review")
    return tuple(found)
