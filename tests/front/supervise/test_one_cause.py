"""Forward and backward of one compile that go away together are one cause: the second is not searched again."""

import json
from dataclasses import replace

import pytest

from made import make
from torchsleuth.core.cases.folder import write_case
from torchsleuth.core.cases.model import GraphFacts, Triage, Workaround
from torchsleuth.core.cases.record import CompileSettings, GraphRecord
from torchsleuth.front.supervise.program_cures import one_cause

CURE = Workaround(
    "setting epilogue_fusion", "torch._inductor.config.epilogue_fusion = False", True, program=True
)
FORWARD = GraphRecord(CompileSettings("aot"), compile_id="0/0", function="step")
BACKWARD = replace(FORWARD, settings=CompileSettings("aot", direction="backward"))


def case(folder, id, record, **more):
    made = make(id, kind="accuracy", graph=GraphFacts(3, 1, ("net.py:7",)), **more)
    return write_case(folder, made, {"record.json": json.dumps(record.to_json())})


def test_the_backward_takes_over_what_is_known_of_its_forward(tmp_path):
    found = Triage("inductor", "fusion", user_line="net.py:7", pinned=True)
    first = case(tmp_path, "1a2b3c4d", FORWARD, triage=found, workarounds=(CURE,))
    second = one_cause(case(tmp_path, "2b3c4d5e", BACKWARD), [first])
    assert second.case.extra["same_cause"] == "1a2b3c4d"
    assert (second.case.triage.component, second.case.triage.user_line) == ("inductor", "net.py:7")
    assert second.case.triage.detail == (
        "it goes away with what helps case 1a2b3c4d, another graph of the same function"
    )
    assert second.case.workarounds == (CURE,)


@pytest.mark.parametrize(
    ("record", "workaround"),
    [
        (replace(BACKWARD, compile_id="1/0"), CURE),
        (replace(BACKWARD, function="other"), CURE),
        (FORWARD, CURE),
        (BACKWARD, replace(CURE, program=None)),
        (BACKWARD, replace(CURE, name="backend eager")),
    ],
    ids=[
        "another compile",
        "another function",
        "the same direction",
        "untried on the program",
        "another backend",
    ],
)
def test_what_may_be_another_cause_is_looked_into(tmp_path, record, workaround):
    first = case(tmp_path, "1a2b3c4d", FORWARD, workarounds=(workaround,))
    assert one_cause(case(tmp_path, "2b3c4d5e", record), [first]) is None
