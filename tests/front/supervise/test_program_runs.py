"""Running a program again from outside: how it ended, within its time, and nothing left behind."""

import io
import json
import os
import sys
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest

from made import make
from torchsleuth.core.cases.folder import write_case
from torchsleuth.core.changes import Change
from torchsleuth.core.criteria import why_not_cured
from torchsleuth.front.cli.options import program_line
from torchsleuth.front.supervise.program_runs import (
    CannotRunProgram,
    Program,
    ProgramRun,
    Watch,
    program_of,
    run_program,
    watch_for,
)
from torchsleuth.script_runtime.signature import Signature


def bare(text, **more):
    return run_program(Program((sys.executable, "-c", text)), Change(), **more)


def test_status_and_last_word_are_the_programs():
    run = bare("import sys; sys.stderr.write('x\\n'); raise ValueError('no')")
    assert (run.status, run.last_word, run.healthy) == (1, "ValueError", False)
    assert bare("pass").healthy
    assert bare("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)").status == 139


def test_a_program_that_does_not_end_is_ended_with_all_it_started(tmp_path):
    pipe = tmp_path / "held"
    os.mkfifo(pipe)
    # The child that it starts holds one end of the pipe for good; the other end reads to its end once nobody does.
    child = "import subprocess, sys; subprocess.run(['sleep', '86400'], stdout=open(sys.argv[1], 'w'))"
    read = Queue()
    Thread(target=lambda: read.put(pipe.read_text()), daemon=True).start()
    run = run_program(Program((sys.executable, "-c", child, str(pipe))), Change(), timeout=5)
    assert run.timed_out and not run.healthy and read.get(timeout=250) == ""


def test_each_run_has_a_kernel_cache_of_its_own_that_is_gone_afterwards():
    says = "import os, sys; sys.stderr.write(os.environ['TORCHINDUCTOR_CACHE_DIR'])"
    one, two = bare(says).tail, bare(says).tail
    assert one and one != two and not os.path.exists(one)


def case_with(tmp_path, record, **changes):
    return write_case(tmp_path / "cases", make(**changes), {"record.json": json.dumps(record)})


def test_a_case_says_how_its_program_was_started(tmp_path):
    program = {"command": ["python", "train.py"], "cwd": str(tmp_path)}
    assert program_of(case_with(tmp_path, {"program": program})) == Program(
        ("python", "train.py"), str(tmp_path)
    )


@pytest.mark.parametrize(
    ("record", "changes", "why"),
    [
        ({}, {}, "does not say how"),
        ({"program": {"command": ["python"], "cwd": "/nowhere/at/all"}}, {}, "is not here"),
        ({"program": {"command": ["python"], "cwd": None}}, {}, "is not here"),
        ({"program": {"command": ["python"], "cwd": "/"}}, {"rank": "1"}, "distributed"),
    ],
)
def test_what_cannot_be_started_again_is_refused_in_a_sentence(tmp_path, record, changes, why):
    with pytest.raises(CannotRunProgram, match=why):
        program_of(case_with(tmp_path, record, **changes))


def run_with(*signatures, **changes):
    cases = tuple({"signature": s.to_json()} for s in signatures)
    return ProgramRun(**{"status": 0, "seconds": 1.0, "cases": cases, **changes})


def test_a_program_passes_only_if_it_ends_as_a_healthy_one_would():
    case = make()
    other = Signature("accuracy", "run", outputs=("outputs[0]",))
    assert why_not_cured(case.signature, run_with()) is None
    assert why_not_cured(case.signature, run_with(case.signature)) == "the program fails as before"
    assert "in another way" in (why_not_cured(case.signature, run_with(other)) or "")
    assert "status 3" in (why_not_cured(case.signature, run_with(status=3)) or "")
    assert "not done" in (why_not_cured(case.signature, run_with(timed_out=True)) or "")


def test_the_program_is_watched_for_the_kind_of_failure_it_had():
    assert watch_for(make()) == Watch()
    assert watch_for(make(kind="accuracy")) == Watch(compares=True)
    assert watch_for(make(kind="hang", extra={"timeout": 20.0})) == Watch(timeout=20.0)


def test_a_program_on_standard_input_is_kept_and_has_a_file_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"print(1)\n")))
    python, script, *rest = program_line(None, ["-", "--epochs", "1"], tmp_path)
    assert (python, rest) == (sys.executable, ["--epochs", "1"])
    assert Path(script).parent.parent == tmp_path and Path(script).read_text() == "print(1)\n"


def test_a_launcher_is_found_beside_its_python_where_the_path_has_none(tmp_path, monkeypatch):
    launcher = tmp_path / "torchrun"
    launcher.write_text("#!/bin/sh\n")
    launcher.chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert program_line(None, ["torchrun", "train.py"], tmp_path) == [str(launcher), "train.py"]
