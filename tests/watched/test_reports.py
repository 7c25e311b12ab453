"""What a watched process reports is read back as it was written, also what an earlier torchsleuth has left."""

import json

import pytest

from torchsleuth.core.cases.door import NotRead
from torchsleuth.core.cases.spool import watched_processes
from torchsleuth.core.protocol.failures import (
    CallForm,
    Failure,
    RecordedCall,
    Remark,
    UncaughtError,
    WrongCall,
)
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.watched.flight import Flight

WRONG = Failure(
    Signature("accuracy", "capture", outputs=("result",)),
    "result differs",
    1.5,
    function="f",
    torch="2.13.0",
    user_line=("model.py", 3, "return x"),
    frames=(("model.py", 3, "f"),),
    program={"command": ["python", "model.py"], "cwd": None},
    call=RecordedCall((CallForm(("import torch",), "", (), ("f()",)),), fullgraph=True),
    capture=WrongCall(("result differs",), ("model.py", "f", 3)),
)


def test_failures_remarks_and_the_last_error_are_read_as_they_were_written(tmp_path):
    finished = []
    flight = Flight(str(tmp_path), finished.append)
    flight.report(WRONG)
    for times in (2.0, 3.0, 1.0):
        flight.remark(Remark(1, "forward", None, "INCONCLUSIVE", "not to be told", times_eager=times))
    flight.ended_with(UncaughtError("ValueError", "no", "model.py:3"))
    (process,) = watched_processes(tmp_path)
    assert process.failures() == [WRONG] and finished == [flight]
    assert [remark.times_eager for remark in process.remarks()] == [3.0]
    assert process.uncaught() == UncaughtError("ValueError", "no", "model.py:3")


def test_a_report_of_an_earlier_torchsleuth_is_read_with_what_it_has(tmp_path):
    flight = Flight(str(tmp_path))
    report = {
        "signature": {"kind": "crash", "phase": "run"},
        "traceback": "",
        "time": 1,
        "call": {},
        "gone": 7,
    }
    (flight.folder / "failure-1.json").write_text(json.dumps(report))
    (process,) = watched_processes(tmp_path)
    (failure,) = process.failures()
    assert failure == Failure(Signature("crash", "run"), "", 1)


def test_a_report_that_is_none_is_refused(tmp_path):
    flight = Flight(str(tmp_path))
    (flight.folder / "failure-1.json").write_text(
        '{"signature": {"kind": "crash", "phase": "run"}, "time": 1}'
    )
    (process,) = watched_processes(tmp_path)
    with pytest.raises(NotRead, match="does not report a failure"):
        process.failures()
