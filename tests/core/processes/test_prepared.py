"""Scripts run in interpreters that were started before; what they do to themselves is told, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import faulty
from faulty import FAILS, trial
from torchsleuth.core.criteria import Answer
from torchsleuth.core.processes.prepared import PreparedInterpreter
from torchsleuth.core.processes.starting import without_devices
from torchsleuth.core.processes.tree import descendants_of, kill_marked, marked_processes
from torchsleuth.front.supervise.scripts import ScriptRunner
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.workers.pool import Workers
from torchsleuth.torch_internals.kernel_builds import (
    note_answers,
    noted_answers,
    probe_vector_instructions,
)

FAULTY = str(Path(faulty.__file__).parent)
# Where a device can be seen, scripts are run by themselves: these are about forks.
NO_DEVICE = {**os.environ, **without_devices()}
ERROR = Signature("compile_error", "compile", ("ValueError",), "it failed")
BEGIN = "import os, sys, time\nprint('torchsleuth: compiling', file=sys.stderr, flush=True)\n"


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(BEGIN + text)
    return path


@pytest.fixture(scope="module")
def runner():
    if not noted_answers():  # no trial with kernels ran here yet
        from torch._inductor.cpu_vec_isa import valid_vec_isa_list

        valid_vec_isa_list.cache_clear()
        note_answers(probe_vector_instructions())
    with PreparedInterpreter(NO_DEVICE) as prepared:
        yield ScriptRunner(prepared)


def test_a_script_runs_as_it_would_by_itself_with_a_torch_that_compiled_nothing(tmp_path):
    path = script(
        tmp_path,
        "import torch\n"
        "cache = os.environ['TORCHINDUCTOR_CACHE_DIR']\n"
        "kernels = [f for _, _, files in os.walk(cache) for f in files if '.main.' in f]\n"
        "threads = len(os.listdir('/proc/self/task'))\n"
        "graphs = len(torch._dynamo.utils.counters['stats'])\n"
        f"with open({str(tmp_path / 'seen')!r}, 'a') as file:\n"
        "    print([__name__, sys.argv, sys.path[0], kernels, threads, graphs], os.getpid(), cache, sep='|', file=file)\n"
        "print('REPRODUCED: it failed')\n"
        "sys.exit(1)\n",
    )
    with PreparedInterpreter(NO_DEVICE) as prepared:
        runs = ScriptRunner(prepared).run_times(path, ERROR, 3)
    assert [run.answer for run in runs] == [Answer.FAILS] * 3
    seen = [line.split("|") for line in (tmp_path / "seen").read_text().splitlines()]
    assert {facts for facts, _, _ in seen} == {repr(["__main__", [str(path)], str(tmp_path), [], 1, 0])}
    assert len({pid for _, pid, _ in seen}) == len({cache for _, _, cache in seen}) == 3


@pytest.mark.parametrize(
    ("text", "expected", "answer"),
    [
        ("print('NOT REPRODUCED')", ERROR, Answer.PASSES),
        ("print('DIFFERENT FAILURE: other')\nsys.exit(2)", ERROR, Answer.OTHER),
        ("raise RuntimeError('not caught')", ERROR, Answer.CANNOT_TELL),
        ("os.kill(os.getpid(), 11)", Signature("crash", "compile", signal="SIGSEGV"), Answer.FAILS),
        ("os.kill(os.getpid(), 6)", Signature("crash", "compile", signal="SIGSEGV"), Answer.OTHER),
        ("time.sleep(60)", Signature("hang", "compile"), Answer.FAILS),
        ("time.sleep(60)", ERROR, Answer.OTHER),
    ],
)
def test_what_a_script_does_to_itself_is_its_answer(runner, tmp_path, text, expected, answer):
    runs = runner.run_times(script(tmp_path, text), expected, 2, phase_seconds=1.5)
    assert [run.answer for run in runs] == [answer] * 2


def test_a_hung_script_and_what_it_started_are_gone_afterwards(tmp_path):
    path = script(
        tmp_path,
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '61.25'])\n"
        f"open({str(tmp_path)!r} + f'/{{os.getpid()}}', 'w').write(str(child.pid))\n"
        "time.sleep(60)\n",
    )
    with PreparedInterpreter(NO_DEVICE) as prepared:
        runs = ScriptRunner(prepared).run_times(path, Signature("hang", "compile"), 3, phase_seconds=2.0)
        assert runs[0].reproduced
        started = [int(f.name) for f in tmp_path.iterdir() if f.name.isdecimal()]
        started += [int((tmp_path / str(pid)).read_text()) for pid in started]
        assert len(started) == 6
        wait_until_gone(started)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pids: list[int]) -> None:
    """Where one stays, the clock of the test ends this."""
    while any(map(alive, pids)):
        time.sleep(0.05)


def test_an_interpreter_that_was_killed_is_replaced_by_fresh_ones(tmp_path):
    with PreparedInterpreter(NO_DEVICE) as prepared:
        os.kill(prepared._process.pid, signal.SIGKILL)
        prepared._process.wait()
        path = script(tmp_path, "print('REPRODUCED: x')\nsys.exit(1)")
        runs = ScriptRunner(prepared).run_times(path, ERROR, 3)
    assert [run.answer for run in runs] == [Answer.FAILS] * 3


def test_nothing_is_left_when_the_parent_is_killed_and_nobody_elses_is_touched(runner, tmp_path):
    program = (
        "import sys, time\nfrom torchsleuth.core.processes.prepared import PreparedInterpreter\n"
        "prepared = PreparedInterpreter()\nprint('ready', flush=True)\ntime.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert parent.stdout is not None and parent.stdout.readline() == b"ready\n"
    while len(below := descendants_of(parent.pid)) < 2:  # the interpreter, and who cleans up after its parent
        time.sleep(0.05)
    assert len(below) == 2
    parent.kill()
    parent.wait()
    wait_until_gone(below)
    assert alive(runner.prepared._process.pid)
    assert runner.run(script(tmp_path, "print('NOT REPRODUCED')"), ERROR).answer is Answer.PASSES
    assert alive(runner.prepared._process.pid)


def test_a_run_that_outlasts_the_time_for_everything_is_no_hang(tmp_path):
    path = script(tmp_path, "time.sleep(30)")
    run = ScriptRunner().run(path, Signature("hang", "compile"), deadline=time.monotonic() + 1.0)
    assert run.answer is Answer.CANNOT_TELL and "time" in run.summary


def test_runs_that_are_stopped_end_before_their_script_and_no_more_begin(tmp_path):
    path = script(
        tmp_path,
        f"open({str(tmp_path)!r} + f'/{{os.getpid()}}', 'w').close()\n"
        "time.sleep(240)\n"
        "print('REPRODUCED: it failed')\n"
        "sys.exit(1)\n",
    )

    def begun():
        return [int(file.name) for file in tmp_path.iterdir() if file.name.isdecimal()]

    with PreparedInterpreter(NO_DEVICE) as prepared, ThreadPoolExecutor(1) as pool:
        runner = ScriptRunner(prepared)
        runs = pool.submit(runner.run_times, path, ERROR, 3)
        while len(begun()) < 3:
            time.sleep(0.05)
        runner.stopped.set()
        assert [run.answer for run in runs.result()] == [Answer.CANNOT_TELL] * 3
        assert not any(map(alive, begun()))
        assert runner.run(path, ERROR).answer is Answer.CANNOT_TELL


@pytest.mark.parametrize(("more", "known"), [("", True), ("# torch._inductor.config.cpp.cxx = ...", False)])
def test_what_the_cpp_compiler_can_do_is_known_unless_the_script_names_another(runner, tmp_path, more, known):
    if not noted_answers():
        pytest.skip("the compiler knows less than the processor here, which is not noted")
    text = (
        "from torch._inductor.cpu_vec_isa import valid_vec_isa_list\n"
        f"assert valid_vec_isa_list.cache_info().currsize == {int(known)}\n"
        f"print('NOT REPRODUCED')\n{more}\n"
    )
    assert runner.run(script(tmp_path, text), ERROR).answer is Answer.PASSES


@pytest.fixture
def home(monkeypatch):
    """A loaded interpreter that finds those trials, as its children will."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([FAULTY, os.environ.get("PYTHONPATH", "")]))
    with PreparedInterpreter({**os.environ, **without_devices()}) as made:
        yield made


def forked_workers(home, folder):
    names = {"call": "faulty:run", "warm_up": None, "still_good": "faulty:good"}
    return Workers(2, folder=folder, prepared=home, **names)


def test_workers_forked_from_a_loaded_interpreter_survive_a_crash_and_leave_it_clean(home, tmp_path):
    with forked_workers(home, tmp_path) as workers:
        crash, failure = workers.run(trial("segv")), workers.run(trial("fail"))
        token = workers._token
        assert workers.start_up > 0 and marked_processes(token)
        stray = workers.run(trial("grandchild"))
    assert crash.signature is not None and crash.signature.kind == "crash"
    assert failure.fails_like(FAILS) and stray.error is None
    assert not marked_processes(token)
    run = ScriptRunner(home).run(script(tmp_path, "print('NOT REPRODUCED')"), ERROR)
    assert run.answer is Answer.PASSES


def test_a_forked_server_that_is_killed_is_replaced_and_leaves_nothing(home, tmp_path):
    with forked_workers(home, tmp_path) as workers:
        assert workers.run(trial("fail")).fails_like(FAILS)
        token = workers._token
        assert kill_marked(token) >= 1
        assert workers.run(trial("fail"), fresh=True).fails_like(FAILS)
        assert workers._token != token and not marked_processes(token)


def running_with_token_of(workers, count: int) -> list[int]:
    """The processes of a trial that started others, once they are there."""
    while len(found := marked_processes(workers._token)) < count:
        time.sleep(0.05)
    return found


def test_what_a_trial_started_goes_when_whoever_asked_for_it_is_gone(home, tmp_path, monkeypatch):
    """As when the search host is killed while a C++ compiler runs below a trial."""
    monkeypatch.setattr(
        "torchsleuth.search.workers.pool.kill_marked", lambda token: 0
    )  # who is gone ends nothing
    control = home.join()
    workers = forked_workers(PreparedInterpreter.joined(control, NO_DEVICE), tmp_path)
    workers.submit(trial("grandchild wait"))
    started = running_with_token_of(workers, 4)  # the server, the trial and two of its own
    control.close()
    wait_until_gone(started)
    assert alive(home._process.pid)


def test_what_a_trial_started_goes_with_the_interpreter(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([FAULTY, os.environ.get("PYTHONPATH", "")]))
    home = PreparedInterpreter({**os.environ, **without_devices()})
    workers = forked_workers(home, tmp_path)
    workers.submit(trial("grandchild wait"))
    started = running_with_token_of(workers, 4)
    home.close()
    assert not [pid for pid in started if alive(pid)]


def test_where_a_device_can_be_seen_forks_without_it_serve_once_one_answered_as_the_script_alone(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("torchsleuth.core.processes.prepared.sees_devices", lambda environment: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    path = script(
        tmp_path,
        f"with open({str(tmp_path / 'seen')!r}, 'a') as file:\n"
        f"    print(os.getppid() == {os.getpid()}, os.environ['CUDA_VISIBLE_DEVICES'], file=file)\n"
        "print('REPRODUCED: x')\nsys.exit(1)\n",
    )

    def seen() -> list[str]:
        lines = (tmp_path / "seen").read_text().splitlines()
        (tmp_path / "seen").unlink()
        return sorted(lines)

    with PreparedInterpreter() as prepared:
        runner = ScriptRunner(prepared)
        assert runner.run(path, ERROR).answer is Answer.FAILS
        assert seen() == ["False ", "True 0"]
        assert runner.run(path, ERROR).answer is Answer.FAILS
        assert seen() == ["False "]
        assert [run.answer for run in runner.run_times(path, ERROR, 3)] == [Answer.FAILS] * 3
        assert seen() == ["False ", "False ", "True 0"]


def test_a_script_that_answers_otherwise_without_devices_is_a_process_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr("torchsleuth.core.processes.prepared.sees_devices", lambda environment: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    path = script(
        tmp_path,
        "if os.environ['CUDA_VISIBLE_DEVICES']:\n    print('REPRODUCED: x')\n    sys.exit(1)\nprint('NOT REPRODUCED')\n",
    )
    with PreparedInterpreter() as prepared:
        runner = ScriptRunner(prepared)
        assert [runner.run(path, ERROR).answer for _ in range(2)] == [Answer.FAILS] * 2
        assert [run.answer for run in runner.run_times(path, ERROR, 3)] == [Answer.FAILS] * 3
