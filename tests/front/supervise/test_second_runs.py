"""What a second look does when it cannot be had, and how a hang gets the name that its script shows."""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import cast

import pytest

from made import make
from torchsleuth.core.cases.folder import write_case
from torchsleuth.core.cases.record import CompileSettings, GraphRecord
from torchsleuth.core.cases.spool import WatchedProcess
from torchsleuth.core.criteria import Answer, answer_of_watched_run
from torchsleuth.front.supervise.case_at_work import CaseAtWork, Processes
from torchsleuth.front.supervise.host import SearchHost
from torchsleuth.front.supervise.program_runs import ProgramRun
from torchsleuth.front.supervise.scripts import ScriptRun
from torchsleuth.front.supervise.second_look import NoSecondLook, second_look
from torchsleuth.front.supervise.settle import settle_graph
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.watched.flight import write_json
from torchsleuth.watched.graph_record import RecordedGraph

# Any host will do: whether there is one says whether the program may run once more.
SEARCHES = cast(SearchHost, object())
GRAPH = "class Repro(torch.nn.Module):\n    def forward(self, x):\n        return (x,)\n"


class Runner:
    """Answers as told, one run after the other, and notes the clocks."""

    def __init__(self, *answers: ScriptRun) -> None:
        self.answers = list(answers)
        self.clocks: list[float] = []

    def run(self, script, expected, *, arguments=(), phase_seconds=0.0, deadline=None, compiles=True):
        self.clocks.append(phase_seconds)
        return self.answers.pop(0)


def case_in(tmp_path, command, **changes):
    """A case of one graph, and the process that it was seen in."""
    spool = tmp_path / "p1-1"
    (spool / "g1").mkdir(parents=True)
    (spool / "g1" / "graph.py").write_text(GRAPH)
    program = {"command": list(command), "cwd": str(tmp_path)}
    record = GraphRecord(CompileSettings(), number=1, program=program, inputs={"inputs": [], "symbols": {}})
    RecordedGraph(spool / "g1", record).update()
    write_json(spool / "process.json", {})
    case = dataclasses.replace(make(), no_repro=None, **changes)
    folder = write_case(tmp_path / "cases", case, {"record.json": (spool / "g1" / "record.json").read_text()})
    seen = time.time()
    return folder, WatchedProcess(spool, {"pid": 1, "started": seen, "argv": []})


def test_a_hang_is_named_by_the_phase_in_which_its_script_hangs(tmp_path):
    hang = Signature("hang", "compile")
    changes = {"kind": "hang", "phase": "compile", "signature": hang, "extra": {"timeout": 40}}
    folder, process = case_in(tmp_path, ["python", "train.py"], **changes)
    running = ScriptRun(Answer.OTHER, "hang while running", 60.0, Signature("hang", "run"))
    said: list[str] = []
    case = CaseAtWork(folder, Processes(Runner(running), SEARCHES), time.monotonic() + 600, said.append)
    settle_graph(case, process)
    folder = case.folder
    assert folder.case.signature == Signature("hang", "run") and folder.case.phase == "run"
    assert folder.case.verified.same_signature
    assert "'phase': 'run'" in folder.file("original.py").read_text()


@pytest.mark.parametrize(
    "command, seconds, why",
    [
        (["python", "-"], 600, "standard input"),
        (["python", "train.py"], 10, "--budget"),
    ],
)
def test_a_program_that_cannot_be_run_again_says_why(tmp_path, command, seconds, why):
    folder, process = case_in(tmp_path, command, kind="accuracy", phase="run")
    with (
        pytest.raises(NoSecondLook, match=why),
        second_look(CaseAtWork(folder, Processes(), time.monotonic() + seconds), process),
    ):
        pass


def test_a_program_that_passes_this_time_is_said_to_have_passed(tmp_path):
    (tmp_path / "train.py").write_text("")
    command = [sys.executable, "train.py"]
    folder, process = case_in(tmp_path, command, kind="accuracy", phase="run")
    nothing = ScriptRun(Answer.PASSES, "NOT REPRODUCED", 1.0)
    case = CaseAtWork(folder, Processes(Runner(nothing), SEARCHES), time.monotonic() + 600)
    settle_graph(case, process)
    folder = case.folder
    assert folder.case.verified.reproduced == 0
    assert "run once more, did not fail in the same way" in folder.case.verified.error


def test_a_watched_run_answers_for_the_failure_of_a_case():
    case = dataclasses.replace(make(), kind="accuracy", signature=Signature("accuracy", "run"))
    wrong = {"signature": Signature("accuracy", "run", outputs=("outputs[0]",)).to_json()}
    other = {"signature": Signature("crash", "run", signal="SIGSEGV").to_json()}
    answers = [
        answer_of_watched_run(case.signature, run)
        for run in (
            ProgramRun(0, 1.0),
            ProgramRun(0, 1.0, cases=(wrong,)),
            ProgramRun(139, 1.0, cases=(other,)),
            ProgramRun(1, 1.0),
            ProgramRun(0, 1.0, timed_out=True),
        )
    ]
    assert answers == [Answer.PASSES, Answer.FAILS, Answer.OTHER, Answer.OTHER, Answer.CANNOT_TELL]
