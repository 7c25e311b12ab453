"""The search host may die at any moment and in any step: the case stays valid, the rest is done, nothing is left."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from program_runs import run_watched
from torchsleuth.core.cases.folder import CaseFolder, open_case
from torchsleuth.core.processes.prepared import PreparedInterpreter
from torchsleuth.core.processes.tree import descendants_of
from torchsleuth.core.protocol.steps import Begins, TriageOrder
from torchsleuth.front.supervise.case_at_work import CaseAtWork, Processes
from torchsleuth.front.supervise.host import HostLost, SearchHost, StepRefused
from torchsleuth.front.supervise.road import blame, find_workarounds, minify
from torchsleuth.front.supervise.scripts import ScriptRunner

PROGRAM = """
    import torch
    import torch._inductor.config as config

    config.cpp.inject_relu_bug_TESTING_ONLY = "compile_error"

    @torch.compile
    def f(x):
        return torch.relu(x.sin() + 1) * 2 - x.cos()

    f(torch.randn(64))
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """A case of five calls that fails in code generation, recorded once."""
    run = run_watched(tmp_path_factory.mktemp("recorded"), PROGRAM, "--record-only")
    return run.folder / "cases" / run.case["id"]


@pytest.fixture(scope="module")
def prepared():
    with PreparedInterpreter() as made:
        yield made


@pytest.fixture
def folder(recorded, tmp_path) -> CaseFolder:
    """A copy of the case, as `run` leaves it once its script was seen to fail."""
    target = tmp_path / recorded.name
    shutil.copytree(recorded, target)
    document = json.loads((target / "case.json").read_text())
    document["verified"] = {"times": 1, "reproduced": 1, "same_signature": True}
    (target / "case.json").write_text(json.dumps(document))
    return open_case(tmp_path, str(target))


@pytest.fixture
def processes(prepared, folder):
    before = set(descendants_of(os.getpid()))
    with SearchHost(prepared, "2", folder.path / "minify") as host:
        yield Processes(ScriptRunner(prepared), host)
    assert left_behind(before) == []
    assert not (folder.path / "minify" / "values").exists()


def left_behind(before: set[int]) -> list[int]:
    """What is still there of what a host started, once it had a moment to go."""
    deadline = time.monotonic() + 20
    while (
        found := [p for p in descendants_of(os.getpid()) if p not in before]
    ) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


class Killer:
    """Does something to the host's process when it says that it is doing this."""

    def __init__(self, host: SearchHost, doing: str, number: signal.Signals, times: int = 1) -> None:
        self.host, self.doing, self.number, self.left = host, doing, number, times
        self.said: list[str] = []
        self.seen: list[str] = []

    def hear(self, message) -> None:
        doing = message.doing if isinstance(message, Begins) else ""
        if doing:
            self.seen.append(doing)
        if self.left and self.doing in doing:
            self.left -= 1
            os.kill(self.host._pid, self.number)

    def say(self, text: str) -> None:
        self.said.append(text)


def at_work(folder, processes, seconds, tell, hear=lambda message: None) -> CaseAtWork:
    return CaseAtWork(folder, processes, time.monotonic() + seconds, tell, hear)


STEPS = ["reading the case", "smaller: nodes", "smaller: shapes", "writing the scripts", "may vary"]
DEFAULT = [("smaller: nodes", signal.SIGSEGV), ("may vary", signal.SIGKILL)]


@pytest.mark.parametrize(
    ("doing", "number"),
    [
        pytest.param(doing, number, marks=() if (doing, number) in DEFAULT else pytest.mark.slow)
        for doing in STEPS
        for number in (signal.SIGSEGV, signal.SIGKILL)
    ],
)
def test_a_host_that_dies_while_it_makes_a_case_small_is_started_again_without_that(
    processes, folder, doing, number
):
    killer = Killer(processes.host, doing, number)
    outcome = minify(at_work(folder, processes, 120, killer.say, killer.hear), 120)
    assert killer.left == 0
    # The signal comes a moment after the word, so the host may have gone on to its next step.
    told = re.search(
        rf"died of {number.name} while (.+); starting it again without that", "\n".join(killer.said)
    )
    assert told is not None and processes.host.left_out == [told[1]]
    assert outcome.verified and outcome.folder.case.minified.calls <= 5
    assert outcome.folder.case.verified.reproduced == outcome.folder.case.verified.times == 3
    assert open_case(folder.path.parent, str(folder.path)).case.minified.error is None


@pytest.mark.slow
def test_a_host_that_dies_again_leaves_the_best_script_so_far_verified_and_says_why(processes, folder):
    killer = Killer(processes.host, "smaller: shapes", signal.SIGSEGV)

    def hear(message):
        killer.hear(message)
        if isinstance(message, Begins) and "values" in message.doing and processes.host.left_out:
            os.kill(processes.host._pid, signal.SIGKILL)

    outcome = minify(at_work(folder, processes, 120, killer.say, hear), 120)
    case = outcome.folder.case
    assert outcome.verified and case.minified.calls == 1
    assert "died of SIGKILL while making the graph smaller" in case.minified.error
    assert (folder.path / "repro.py").is_file()


def test_a_host_that_cannot_even_read_the_case_is_told_and_kept(processes, folder):
    killer = Killer(processes.host, "reading the case", signal.SIGSEGV, times=2)
    with pytest.raises(HostLost, match="died of SIGSEGV while reading the case") as lost:
        minify(at_work(folder, processes, 60, killer.say, killer.hear), 60)
    assert lost.value.exit_status == 1
    kept = open_case(folder.path.parent, str(folder.path)).case.minified
    assert "SIGSEGV" in kept.error


def test_a_triage_whose_host_dies_twice_leaves_its_reason_and_the_next_step_runs(processes, folder):
    killer = Killer(processes.host, "looking for the calls", signal.SIGSEGV)
    found = at_work(folder, processes, 60, killer.say, killer.hear)
    blame(found, 60)
    assert found.case.triage.component == "inductor" and found.case.triage.error is None
    assert any("died of SIGSEGV" in said and "starting it again" in said for said in killer.said)
    killer = Killer(processes.host, "trying", signal.SIGKILL)
    found.follow = killer.hear
    find_workarounds(found, 90)
    assert any(each.verified for each in found.case.workarounds)


@pytest.mark.slow
def test_a_host_that_hangs_past_its_budget_is_ended(processes, folder):
    killer = Killer(processes.host, "reading the case", signal.SIGSTOP)
    with pytest.raises(HostLost, match=r"did not end in its time while reading the case"):
        order = TriageOrder(str(folder.path.absolute()))
        processes.host.ask(order, 15.0, said=killer.say, heard=killer.hear)
    # There is no time left to start it again for this; the next step finds another.
    assert killer.said == []
    case = at_work(folder, processes, 60, killer.say)
    blame(case, 60)
    assert case.case.triage.component == "inductor"


def test_a_host_that_takes_too_much_memory_is_ended(prepared, folder):
    before = set(descendants_of(os.getpid()))
    with SearchHost(prepared, "1", folder.path / "minify", memory=1 << 20) as host:
        said: list[str] = []
        with pytest.raises(HostLost, match="took more than 1 MB of memory"):
            host.ask(TriageOrder(str(folder.path.absolute())), 30.0, said=said.append)
    assert left_behind(before) == []


def test_what_cannot_be_done_is_one_sentence_and_the_host_goes_on(processes, folder):
    (folder.path / "graph.py").rename(folder.path / "gone.py")
    with pytest.raises(StepRefused, match="has lost its graph"):
        minify(at_work(folder, processes, 30, print), 30)
    (folder.path / "gone.py").rename(folder.path / "graph.py")
    assert minify(at_work(folder, processes, 120, print), 120).verified


def test_without_its_interpreter_a_host_is_started_anew(folder):
    with PreparedInterpreter() as lost:
        os.kill(lost._process.pid, signal.SIGKILL)
        lost._process.wait()
        with SearchHost(lost, "2", folder.path / "minify") as host:
            case = at_work(folder, Processes(ScriptRunner(), host), 120, print)
            blame(case, 120)
            assert case.case.triage.component


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_everything_goes_with_the_front(recorded, tmp_path):
    program = (
        "import sys, time\nfrom pathlib import Path\n"
        "from torchsleuth.core.processes.prepared import PreparedInterpreter\n"
        "from torchsleuth.core.protocol.steps import TriageOrder\n"
        "from torchsleuth.front.supervise.host import SearchHost\n"
        "host = SearchHost(PreparedInterpreter(), '1', Path(sys.argv[1]))\n"
        "host.ask(TriageOrder(sys.argv[2]), 60, heard=lambda m: print('doing', flush=True))\n"
    )
    front = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "work"), str(recorded)], stdout=subprocess.PIPE
    )
    assert front.stdout is not None and front.stdout.readline() == b"doing\n"
    below = descendants_of(front.pid)
    assert len(below) >= 2
    front.kill()
    front.wait()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in below) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in below)
