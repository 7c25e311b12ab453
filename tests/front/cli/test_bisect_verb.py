"""`bisect` from the command line: a made index of tiny releases, and the torch that is installed here."""

import importlib.metadata
import json
import os
import signal
import site
import subprocess
import sys
import textwrap
import time

import pytest

from made import make
from made_index import make_wheel, served
from program_runs import environment, sleuth
from torchsleuth.core.cases.folder import open_case, write_case
from torchsleuth.core.cases.releases import bisection_of, newest_working
from torchsleuth.core.changes import NOTHING
from torchsleuth.front.bisect.environments import beside_torch
from torchsleuth.front.bisect.index import IndexProvider
from torchsleuth.front.supervise.program_runs import Program, run_program
from torchsleuth.script_runtime.signature import Signature

INSTALLED = importlib.metadata.version("torch").partition("+")[0]
SCRIPT = """
    import sys, torch
    EXPECTED = {"kind": "runtime_error", "phase": "run", "exceptions": ["ValueError"], "message": "bad"}
    sys.stderr.write("torchsleuth: running\\n")
    version = tuple(int(part) for part in torch.__version__.partition("+")[0].split("."))
"""
BROKEN_SINCE = """
    if version == (0, 3, 0):
        print("CANNOT TELL: it lacks what the script needs"), sys.exit(3)
    if version >= (0, 4, 0):
        print("REPRODUCED: ValueError: bad"), sys.exit(1)
    print("NOT REPRODUCED")
"""


@pytest.fixture
def index(tmp_path):
    wheels = [make_wheel(tmp_path / "made", f"0.{minor}.0") for minor in range(1, 7)]
    with served(tmp_path / "index", wheels, as_json=True) as url:
        yield url


def case_of(tmp_path, ending):
    text = textwrap.dedent(SCRIPT) + textwrap.dedent(ending)
    return write_case(tmp_path / "cases", make(), {"repro.py": text})


def bisect(tmp_path, *arguments):
    env = environment(tmp_path, XDG_CACHE_HOME=str(tmp_path / "user"), PIP_RETRIES="0")
    return sleuth("bisect", *arguments, cwd=tmp_path, env=env)


def test_the_release_that_brought_the_failure_is_found_and_kept(tmp_path, index):
    folder = case_of(tmp_path, BROKEN_SINCE)
    done = bisect(tmp_path, "last", "--torch", "0.1..0.6", "--index-url", index, "--yes", "--json")
    assert done.status == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["answer"], answer["version"]) == ("broken since", "0.4.0")
    tried = {row["version"]: row["outcome"] for row in answer["tried"]}
    assert tried["0.1.0"] == "passes" and tried["0.6.0"] == "fails" and tried["0.4.0"] == "fails"
    assert "up to 6 releases of torch" in done.stderr or "up to 5 releases of torch" in done.stderr
    kept = open_case(tmp_path / "cases", str(folder.path)).case
    assert newest_working(bisection_of(kept)) == "0.2.0"
    assert {k: v for k, v in kept.extra["bisect"].items() if k != "of"} == {
        k: v for k, v in answer.items() if k != "of"
    }

    again = bisect(tmp_path, "last", "--torch", "0.1..0.6", "--index-url", index)
    assert again.status == 0 and "building" not in again.stderr, again.stderr
    assert "broken since 0.4.0 (0.2.0 passes)" in again.stdout and "running it" not in again.stderr
    assert "0.3.0 could not be tested" in again.stdout and "it lacks what the script needs" in again.stdout


# An assert that got words with 0.3: the script, written with 0.2, does not know them.
GOT_WORDS = """
    words = ": expected a static size" if version >= (0, 3, 0) else ""
    frame = '  File "/x/site-packages/torch/_inductor/ir.py", line 7, in resize'
    if version < (0, 5, 0):
        sys.stderr.write(f"Traceback (most recent call last):\\n{frame}\\n    check()\\nAssertionError{words}\\n")
        print("DIFFERENT FAILURE: AssertionError" + words if words else "REPRODUCED: AssertionError")
        sys.exit(2 if words else 1)
    print("NOT REPRODUCED")
"""


def test_an_assert_that_got_words_in_a_release_is_the_same_failure(tmp_path, index):
    expected = Signature(
        "compile_error", "compile", ("AssertionError",), "", ("torch/_inductor/ir.py:resize",)
    )
    text = textwrap.dedent(SCRIPT) + textwrap.dedent(GOT_WORDS)
    write_case(tmp_path / "cases", make(signature=expected), {"repro.py": text})
    done = bisect(tmp_path, "last", "--torch", "0.2..0.6", "--index-url", index, "--yes")
    assert done.status == 0, done.stderr
    assert "fixed in 0.5.0 (0.4.0 fails)" in done.stdout


PROGRAM = """
    import sys, torch
    import torchsleuth_beside_test
    version = tuple(int(part) for part in torch.__version__.partition("+")[0].split("."))
    if (0, 2, 0) <= version < (0, 4, 0):
        raise ValueError("bad size")
"""


def test_the_program_itself_is_asked_with_the_packages_that_are_here(tmp_path, index, monkeypatch):
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "torchsleuth_beside_test.py").write_text("")
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(packages)])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent(PROGRAM))
    provider = IndexProvider(index)
    ended = {}
    for version in ("0.1.0", "0.3.0", "0.4.0"):
        python = provider.python_for(version, time.monotonic() + 100)
        there = Program((python, str(program)), str(tmp_path), environment=beside_torch())
        ended[version] = run_program(there, NOTHING, timeout=60)
    words = [run.last_word for run in ended.values()]
    assert words == ["", "ValueError", ""], [run.tail for run in ended.values()]


COMPILES = """
    import torch

    def bad(graph, inputs):
        raise ValueError("bad size")

    torch.compile(torch.sin, backend=bad)(torch.ones(2))
"""


def test_where_the_repro_does_not_fail_the_program_is_asked(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent(COMPILES))
    chain = ("torch._dynamo.exc.BackendCompilerFailed", "ValueError")
    write_case(
        tmp_path / "cases",
        make(
            signature=Signature("compile_error", "compile", chain, "bad size"),
            extra={"program": {"command": [sys.executable, str(program)], "cwd": str(tmp_path)}},
        ),
        {"repro.py": textwrap.dedent(SCRIPT) + "print('NOT REPRODUCED')\n"},
    )
    done = bisect(tmp_path, "last", "--releases", INSTALLED)
    assert "never: it fails in none" in done.stderr and "asked as well" in done.stderr, done.stderr
    assert done.status == 0 and f"always: it fails in the 1 release tested ({INSTALLED})" in done.stdout


def test_without_yes_and_without_a_terminal_nothing_is_downloaded(tmp_path, index):
    case_of(tmp_path, BROKEN_SINCE)
    done = bisect(tmp_path, "last", "--torch", "0.1..0.6", "--index-url", index)
    assert done.status == 2 and done.stdout == ""
    assert "GB of disk, of which" in done.ours()[-2] and "minutes" in done.ours()[-2]
    assert "say --yes" in done.ours()[-1]
    assert not (tmp_path / "user" / "torchsleuth" / "environments").exists()


def test_the_installed_release_is_tried_without_building_or_asking(tmp_path):
    text = textwrap.dedent(SCRIPT) + "print('REPRODUCED: ValueError: bad'); sys.exit(1)\n"
    (tmp_path / "repro.py").write_text(text)
    done = bisect(tmp_path, "repro.py", "--releases", INSTALLED)
    assert done.status == 0, done.stderr
    assert f"always: it fails in the 1 release tested ({INSTALLED})" in done.stdout
    assert not (tmp_path / "user" / "torchsleuth" / "environments").exists()


def test_a_script_that_fails_nowhere_is_status_one(tmp_path):
    (tmp_path / "repro.py").write_text(textwrap.dedent(SCRIPT) + "print('NOT REPRODUCED')\n")
    done = bisect(tmp_path, "repro.py", "--releases", INSTALLED, "--json")
    assert done.status == 1 and json.loads(done.stdout)["answer"] == "never"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--torch", "2.15"], "not a range"),
        (["--torch", "2.15..2.11"], "older one first"),
        (["--torch", "8.1..8.2", "--index-url", "http://127.0.0.1:9/simple"], "no torch in 8.1..8.2"),
        ([], "either --torch"),
        (["--torch", "2.11..2.12", "--releases", "2.11.0"], "either --torch"),
        (["--releases", "newest"], "is not a release of torch"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_two(tmp_path, arguments, says):
    case_of(tmp_path, BROKEN_SINCE)
    done = bisect(tmp_path, "last", *arguments)
    assert done.status == 2 and says in done.ours()[-1] and "Traceback" not in done.stderr, done.stderr


def test_a_case_without_a_script_is_one_sentence(tmp_path):
    write_case(tmp_path / "cases", make(no_repro="it communicates"), {})
    done = bisect(tmp_path, "last", "--torch", "2.11..2.12")
    assert done.status == 2 and "it communicates" in done.ours()[-1]


def wait_for(condition, child):
    while not condition():
        assert child.poll() is None
        time.sleep(0.1)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds its own runs in /proc")
def test_ctrl_c_ends_the_runs_and_keeps_what_was_tried(tmp_path, index):
    slow = "import time\nif version > (0, 1, 0): time.sleep(500)\n" + textwrap.dedent(BROKEN_SINCE)
    folder = case_of(tmp_path, slow)
    env = environment(tmp_path, XDG_CACHE_HOME=str(tmp_path / "user"))
    command = ["bisect", "last", "--torch", "0.1..0.6", "--index-url", index, "--yes", "--cases"]
    with open(tmp_path / "err", "w+") as err:
        child = subprocess.Popen(
            [sys.executable, "-m", "torchsleuth", *command, str(tmp_path / "cases")],
            stderr=err, stdout=subprocess.DEVNULL, env=env, cwd=tmp_path,
        )  # fmt: skip
        wait_for(lambda: "0.6.0: running" in (tmp_path / "err").read_text(), child)
        wait_for(lambda: bisection_of(open_case(tmp_path / "cases", str(folder.path)).case), child)
        child.send_signal(signal.SIGINT)
        status = child.wait()
    said = (tmp_path / "err").read_text()
    assert status == 130 and "the same command goes on" in said, said
    kept = bisection_of(open_case(tmp_path / "cases", str(folder.path)).case)
    assert [t.version for t in kept.tried] == ["0.1.0"] and kept.answer == "unclear" and kept.error
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert str(folder.path.resolve()) not in running


@pytest.mark.parametrize(
    ("reply", "status", "says"), [("n", 2, "Nothing was downloaded."), ("y", 0, "0.6.0 fails")]
)
def test_a_person_is_asked_and_obeyed(tmp_path, index, reply, status, says):
    case_of(tmp_path, BROKEN_SINCE)
    env = environment(tmp_path, XDG_CACHE_HOME=str(tmp_path / "user"))
    ours, theirs = os.openpty()
    command = ["bisect", "last", "--releases", "0.5.0,0.6.0", "--index-url", index, "--cases"]
    os.write(ours, f"{reply}\n".encode())
    done = subprocess.run(
        [sys.executable, "-m", "torchsleuth", *command, str(tmp_path / "cases")],
        stdin=theirs, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=120,
    )  # fmt: skip
    os.close(ours), os.close(theirs)
    assert done.returncode == status and "go on?" in done.stderr and says in done.stderr, done.stderr
