"""A small case to start a test from."""

import dataclasses

from torchsleuth.core.cases.model import Case, GraphFacts
from torchsleuth.script_runtime.signature import Signature


def make(id: str = "1a2b3c4d", created: str = "2026-01-02T03:04:05.000000Z", **changes: object) -> Case:
    case = Case(
        id=id,
        created=created,
        torch="2.13.0",
        device="cpu",
        kind="compile_error",
        phase="compile",
        direction="forward",
        backend="inductor",
        after="aot",
        signature=Signature("compile_error", "compile", ("ValueError",), "bad size #"),
        graph=GraphFacts(12, 3, ("model.py:84",)),
    )
    return dataclasses.replace(case, **changes)
