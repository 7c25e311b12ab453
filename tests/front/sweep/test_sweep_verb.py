"""`torchsleuth sweep` as a person runs it, with backends that take no time to compile."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from program_runs import environment, sleuth, write_program
from torchsleuth.core.change_table import UNCOMPILED
from torchsleuth.search.host.programs_on_ray import ended_programs, packed_folder
from torchsleuth.search.workers.cluster import ClusterUnfit

HEALTHY = """
    import torch

    torch.compile(lambda x: x.cos(), backend="inductor")(torch.ones(3))
"""
BROKEN = HEALTHY.replace("x.cos()", "torch.relu(x)")
ITS_OWN = HEALTHY + "    raise ValueError('mine')\n"


def test_a_sweep_is_kept_and_the_same_command_runs_nothing_again(tmp_path):
    for name, text in (("good", HEALTHY), ("bad", BROKEN), ("own", ITS_OWN)):
        text = text.replace("inductor", "sleuth_relu_compile_error")
        write_program(tmp_path / "models", text, f"{name}.py")
    command = ["sweep", "models", "--backends", "as-is", "--no-minify", "--json"]
    ran = sleuth(*command, cwd=tmp_path)
    assert ran.status == 1, ran.stderr
    found = json.loads(ran.stdout)
    counts = {"passes": 1, "fails": 1, "late": 0, "program": 1, "not run": 0, "wanted": 3}
    assert found["counts"] == counts, ran.stderr
    (bucket,) = found["buckets"]
    assert bucket["kind"] == "compile_error" and bucket["cells"] == [["bad.py", "as is"]]
    assert ran.case["backend"] == "sleuth_relu_compile_error"
    table = (tmp_path / "torchsleuth-sweep" / "sweep.html").read_text()
    assert "ReluCompileError" in table and "good.py" in table

    shown = sleuth(*command[:-1], cwd=tmp_path).stdout
    assert "1 of 3 runs pass, 1 fail in one way, 1 left out" in shown
    assert "own.py, not compiled: the program ends with status 1: ValueError" in shown

    (tmp_path / "models" / "own.py").unlink()
    known = tmp_path / "torchsleuth-sweep" / "sweep.json"
    again = sleuth(*command, "--known", known, cwd=tmp_path)
    assert again.status == 0, again.stderr  # what is left fails in a known way
    assert " runs compiled" not in again.stderr and again.case["seen"] == 1


@pytest.mark.slow
def test_one_failure_of_a_bucket_is_made_small_under_the_setting_it_was_seen_with(tmp_path):
    write_program(tmp_path / "models", BROKEN.replace("relu(x)", "relu(x).sin() + 1"), "a.py")
    ran = sleuth("sweep", "models", "--backends", "sleuth_relu_compile_error", cwd=tmp_path)
    assert ran.status == 1, ran.stderr
    assert ran.case["minified"]["calls"] == 1 and ran.case["verified"]["same_signature"], ran.stderr
    assert f"torchsleuth show {ran.case['id']}" in ran.stdout
    assert "torch.relu" in (tmp_path / "torchsleuth-sweep" / "sweep.html").read_text()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["models"], "no *.py file"),
        (["nowhere"], "no folder, list or script"),
        (["models/a.txt", "--dtypes", "float8"], "float8"),
        (["models/a.txt", "--backends", "inductor,,eager"], "empty name"),
        (["models/a.txt", "--modes", "fastest"], "there is no 'fastest'"),
        (["models/a.txt", "--known", "models/a.txt"], "sweep.json"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, options, says):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.txt").write_text("-m json.tool\n")
    ran = sleuth("sweep", *options, cwd=tmp_path)
    assert ran.status == 2 and says in ran.stderr and "Traceback" not in ran.stderr


def test_ctrl_c_ends_the_programs_and_keeps_what_is_known(tmp_path):
    write_program(tmp_path / "models", "pass", "a.py")
    write_program(
        tmp_path / "models",
        "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)",
        "z.py",
    )
    command = [
        sys.executable,
        "-m",
        "torchsleuth",
        "sweep",
        "models",
        "--backends",
        "as-is",
        "--workers",
        "2",
    ]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.PIPE, text=True
    )
    log = tmp_path / "torchsleuth-sweep" / "results.jsonl"
    until = time.monotonic() + 200
    while not ((tmp_path / "pid").exists() and log.exists()) and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 130 and "the same command goes on" in said
    assert json.loads(log.read_text())["program"] == "a.py"
    assert (tmp_path / "torchsleuth-sweep" / "sweep.html").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


class InlineRay:
    """A Ray of one node, this process, which runs a task when it is waited for."""

    class exceptions:
        class RayError(Exception):
            pass

    def remote(self, function):
        self.function = function
        return self

    def options(self, **_):
        outer = self

        class Task:
            def remote(self, *arguments):
                return Reference(lambda: outer.function(*arguments))

        return Task()

    def put(self, value):
        return value

    def wait(self, references, num_returns, timeout):
        return references[:num_returns], references[num_returns:]

    def get(self, reference):
        return reference.call()


class Reference:
    def __init__(self, call):
        self.call = call


def order(tmp_path, *jobs):
    return {"seconds": 200, "timeout": 100, "watch": {}, "python": "/elsewhere/python", "jobs": list(jobs)}


def test_a_node_runs_a_program_from_the_folder_that_was_sent_there(tmp_path):
    write_program(tmp_path / "sent", "import helper; raise SystemExit(helper.STATUS)", "a.py")
    write_program(tmp_path / "sent", "STATUS = 7", "helper.py")
    job = {"command": ["/elsewhere/python", "a.py"], "change": UNCOMPILED.to_json()}
    archive = packed_folder(tmp_path / "sent")
    (answer,) = ended_programs(InlineRay(), order(tmp_path, job), archive)
    assert answer["job"] == 0 and answer["run"]["status"] == 7
    json.dumps(answer)


def test_a_node_that_is_lost_is_a_sentence(tmp_path):
    ray = InlineRay()

    def lost(_):
        raise ray.exceptions.RayError("the node\nis gone")

    ray.get = lost
    job = {"command": ["true"], "change": {}}
    assert list(ended_programs(ray, order(tmp_path, job), b"")) == [
        {"error": "the program could not be run on the Ray cluster (is gone)"}
    ]


def test_a_folder_too_large_to_send_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("torchsleuth.search.host.programs_on_ray.MOST_BYTES", 10)
    (tmp_path / "data").write_bytes(b"x" * 11)
    with pytest.raises(ClusterUnfit, match="too much to send"):
        packed_folder(tmp_path)
