"""What a search has to know is asked of real trials; one that dies over a question costs the answer, nothing else."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from torchsleuth.core.cases.record import AmbientState, CompileSettings, Embedded, GraphRecord
from torchsleuth.core.processes.limits import Limits
from torchsleuth.core.processes.tree import descendants_of, marked_processes
from torchsleuth.core.protocol.trials import Question
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.minify.case_state import CannotMinify, state_of_record, wait_for_device
from torchsleuth.search.minify.states import NoAnswer, Questions, trial_of
from torchsleuth.search.workers.pool import Workers
from torchsleuth.torch_core.graphs.recording import RecordedTensor
from torchsleuth.torch_core.tensors import ContentStoreWriter, describe_inputs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

IN_THE_RUN = Signature("runtime_error", "run")
IN_THE_COMPILE = Signature("compile_error", "compile")
GRAPH = """class Repro(torch.nn.Module):
    def forward(self, x):
        doubled = torch.ops.asked.twice.default(x)
        kept = torch.relu(doubled)
        return (kept,)
"""
# An operator of the user's; what it does beside its work, and where, is put in.
TWICE = """
{body}
@torch.library.custom_op("asked::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    {kernel}
    return x * 2

@twice.register_fake
def _(x):
    {fake}
    return torch.empty_like(x)
"""
IMPORTS = ("import os", "import signal", "import subprocess", "import time")
# Each leaves a process behind that nobody below it ends.
STRAY = "subprocess.Popen(['sleep', '1000'], start_new_session=True); "
ENDS = {
    "segfault": (STRAY + "os.kill(os.getpid(), signal.SIGSEGV)", "its process ended with SIGSEGV"),
    "kill": (STRAY + "os.kill(os.getpid(), signal.SIGKILL)", "its process ended with SIGKILL"),
    "hang": (STRAY + "time.sleep(60)", "it was not done after 2 s"),
    "memory": (
        STRAY + "held = [time.sleep(0.01) or bytearray(32 << 20) for _ in range(1000)]",
        "it was ended because it took more than 2000 MB of memory",
    ),
}


def operator(**parts: str) -> Embedded:
    """The user's operator with lines of Python in its `kernel`, in its `fake` kernel or beside it, in its `body`."""
    lines = {"body": "", "kernel": "", "fake": ""} | parts
    return Embedded(TWICE.format(**lines), IMPORTS)


def record(embedded: Embedded) -> GraphRecord:
    settings = CompileSettings(state=AmbientState(grad=False))
    return GraphRecord(settings, placeholders=("x",), embedded=embedded)


@pytest.fixture(scope="module")
def workers():
    with Workers(1, limits=Limits(compile=120, run=120)) as made:
        yield made
    assert marked_processes(made._token) == []


@pytest.fixture
def questions(workers, tmp_path):
    return Questions(workers, tmp_path / "values")


@pytest.fixture
def state(questions, tmp_path):
    """The graph of a case whose operator is healthy, with its values."""
    inputs = describe_inputs([torch.tensor([-1.0, 2.0])], store=ContentStoreWriter(str(tmp_path))).to_json()
    return state_of_record(record(operator()), GRAPH, inputs, tmp_path, IN_THE_RUN, questions)


def asked(questions, state, question):
    """What a caller of `Questions` is told, with what the question takes."""
    trial = trial_of(state, IN_THE_RUN, questions.store)
    return questions._asked(trial, question)


# -- what each question is answered


def test_a_recording_has_what_every_node_yields_with_the_users_own_kernel(questions, state):
    found = questions.recording(state)
    values = {name: found.load(found.value(name)).tolist() for name in ("x", "doubled", "kept")}
    assert values == {"x": [-1.0, 2.0], "doubled": [-2.0, 4.0], "kept": [0.0, 4.0]}
    assert found.stopped is None


def test_a_run_that_raises_is_recorded_up_to_there(questions, state):
    raising = state.having(embedded=operator(kernel="raise ValueError('not today')"))
    found = questions.recording(raising)
    assert found.stopped == "not today"
    assert found.load(found.value("x")).tolist() == [-1.0, 2.0]


def test_a_recording_by_shape_runs_no_kernel_and_keeps_no_bytes(questions, state):
    deadly = state.having(embedded=operator(kernel="os.abort()"))
    told = asked(questions, deadly, Question.RECORD_FAKE)["recording"]
    ((_, kept),) = told["history"]["kept"]
    assert (kept["tensor"]["dtype"], kept["tensor"]["shape"]) == ("float32", [2])
    assert kept["tensor"].get("storage") is None


def test_shapes_are_told_and_why_they_do_not_go_together(questions, state):
    found = questions.shapes(state)
    assert found.why is None
    assert found.forms == dict.fromkeys(("x", "doubled", "kept"), "torch.float32('2',)")
    odd = state.having(embedded=operator(fake="raise ValueError('these sizes do not go together')"))
    assert "these sizes do not go together" in Questions(questions.workers, questions.store).shapes(odd).why


def test_the_noise_of_a_result_is_measured(questions, state):
    found = questions.tolerances(state)
    assert found.by_path.keys() == {"outputs[0]"}
    assert 0 < found.by_path["outputs[0]"] == found.distance < 1e-4


def test_the_users_operators_are_told_by_their_schemas(questions):
    told = questions.schemas(record(operator()), GRAPH, None)
    assert told == ["asked::twice(Tensor x) -> Tensor"]


def test_the_time_of_a_run_without_the_compiler_is_that_of_the_users_kernel(questions, state):
    slow = state.having(embedded=operator(kernel="time.sleep(0.2)"))
    seconds = questions.eager_seconds(slow)
    assert seconds is not None and math.isfinite(seconds) and seconds >= 0.2


FOREIGN = """
import torch
from torch import tensor, device
class Repro(torch.nn.Module):
    def forward(self, arg0_1):
        sin = torch.ops.aten.sin.default(arg0_1)
        return (sin,)
def load_args(reader):
    buf0 = reader.storage(None, 64)
    reader.tensor(buf0, (4, 4), is_leaf=True)
load_args._version = 0
mod = Repro()
if __name__ == '__main__':
    from torch._dynamo.repro.after_aot import run_repro
    run_repro(mod, load_args, accuracy=True, command='run', save_dir=None, tracing_mode='real', check_str=None)
"""


def test_a_script_of_pytorchs_minifier_is_taken_apart_and_its_tensors_kept(questions, tmp_path):
    script, store = tmp_path / "repro.py", tmp_path / "inputs"
    script.write_text(FOREIGN)
    told = questions.foreign_script(script, store)
    assert "torch.ops.aten.sin.default(arg0_1)" in told["graph"]
    assert (told["level"], told["accuracy"], told["calls"]) == ("aot", True, 1)
    (described,) = told["inputs"]["inputs"]
    assert described["shape"] == [4, 4]
    assert (store / "storages" / f"{described['storage']}.safetensors").is_file()


def test_a_script_that_raises_is_told_in_its_own_words(questions, tmp_path):
    script = tmp_path / "repro.py"
    script.write_text("raise KeyError('my_settings')\n" + FOREIGN)
    with pytest.raises(NoAnswer, match=r"what a script of PyTorch's minifier holds: KeyError: 'my_settings'"):
        questions.foreign_script(script, tmp_path)


# -- and what becomes of those that die over it

PLACES = {
    Question.RECORD: "kernel",
    Question.SHAPES: "fake",
    Question.NOISE: "kernel",
    Question.DEFINITIONS: "body",
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("question", PLACES, ids=lambda question: question.name)
def test_a_trial_that_dies_is_told_by_what_it_was_asked_and_how_it_ended(
    workers, questions, state, monkeypatch, question, end
):
    line, how = ENDS[end]
    if end == "hang":
        monkeypatch.setattr(workers, "limits", replace(workers.limits, run=2.0))
    elif end == "memory":
        monkeypatch.setattr(workers, "limits", replace(workers.limits, memory=2000 << 20))
    with pytest.raises(NoAnswer) as told:
        asked(questions, state.having(embedded=operator(**{PLACES[question]: line})), question)
    assert str(told.value) == f"{question.value}: {how}"
    assert told.value.died
    monkeypatch.undo()
    assert asked(questions, state, question)
    wait_until_nothing_is_left(workers)


def wait_until_nothing_is_left(workers: Workers) -> None:
    """But the server, the process it keeps ready, and the one for shapes; where more stay, the test's clock ends this."""
    command = Path(f"/proc/{workers._server.pid}/cmdline").read_bytes()
    while True:
        below = descendants_of(workers._server.pid)
        both = {*below, *marked_processes(workers._token)} - {workers._server.pid}
        try:
            if len(both) <= 2 and all(Path(f"/proc/{pid}/cmdline").read_bytes() == command for pid in both):
                return
        except OSError:  # it has just ended
            pass
        time.sleep(0.05)


def test_what_a_search_can_do_without_is_empty_where_its_trial_died(questions, state):
    deadly = state.having(embedded=operator(kernel="os.abort()", fake="os.abort()"))
    assert questions.tolerances(deadly).by_path == {}
    assert questions.eager_seconds(deadly) is None
    found = questions.shapes(deadly)
    assert (
        found.forms == {} and found.why == "do shapes and dtypes go together: its process ended with SIGABRT"
    )


def test_where_values_play_no_part_shapes_stand_in_for_a_run_that_kills(questions, state):
    deadly = state.having(embedded=operator(kernel="os.abort()"))
    with pytest.raises(NoAnswer, match="what every node yields in eager: its process ended with SIGABRT"):
        questions.recording(deadly)
    found = questions.recording(deadly.having(any_values=True))
    kept = found.value("kept")
    assert isinstance(kept, RecordedTensor) and (kept.spec.shape, kept.spec.dtype) == ((2,), "float32")


def test_definitions_that_kill_end_the_reading_of_a_case_with_a_sentence(questions, tmp_path):
    inputs = describe_inputs([torch.ones(2)]).to_json()
    graph = GRAPH.replace("asked.twice", "asked.never_declared")
    deadly = record(operator(body="os.abort()"))
    with pytest.raises(CannotMinify, match=r"the user's operators that the graph calls: .*SIGABRT"):
        state_of_record(deadly, graph, inputs, tmp_path, IN_THE_COMPILE, questions)


# -- which process answers


def pid_of(questions, state, question):
    trial = replace(trial_of(state, IN_THE_RUN, questions.store), question=question)
    ticket = questions.workers.submit(trial, fresh=True)
    ticket.result()
    return ticket.pid


def test_questions_about_shapes_are_answered_by_one_process_until_it_dies(questions, state):
    first, again = (pid_of(questions, state, Question.SHAPES) for _ in range(2))
    assert first == again
    deadly = state.having(embedded=operator(fake="os.abort()"))
    pid_of(questions, deadly, Question.SHAPES)
    assert pid_of(questions, state, Question.SHAPES) != first
    assert questions.shapes(state).why is None


def test_a_question_that_runs_kernels_has_a_process_of_its_own(questions, state):
    pids = [pid_of(questions, state, question) for question in (Question.RECORD, Question.NOISE) * 2]
    assert len({*pids, pid_of(questions, state, Question.SHAPES)}) == 5


def test_the_process_for_shapes_takes_on_definitions_that_were_changed(questions, state):
    for size in (3, 4, 3):
        changed = operator(fake=f"return x.new_empty({size})")
        told = asked(questions, state.having(embedded=changed), Question.SHAPES)
        assert told["forms"]["kept"] == f"torch.float32('{size}',)"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a device that is not there")
def test_a_device_that_is_not_here_is_told_by_a_trial_that_looked(workers):
    with pytest.raises(CannotMinify, match=r"cuda:0, which is not here"):
        wait_for_device(workers, "cuda:0", 250.0)
