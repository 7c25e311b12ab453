"""What `--pure` leaves out, and what it runs."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
SOME = """
import os, subprocess, sys, threading
import pytest

@pytest.fixture
def made():
    subprocess.run([sys.executable, "-c", ""])

@pytest.fixture(scope="module")
def browser():
    try:
        subprocess.run([sys.executable, "-c", ""])
    except BaseException:
        raise AttributeError("it has no output")

def test_adds():
    assert 1 + 1 == 2

def test_starts():
    subprocess.run([sys.executable, "-c", ""])

def test_forks():
    if os.fork() == 0:
        os._exit(0)

def test_starts_first_in_a_fixture(made):
    pass

def test_starts_in_a_fixture_that_fails_of_it(browser):
    pass

def test_does_so_later(browser):
    pass

def test_starts_in_a_thread():
    thread = threading.Thread(target=lambda: subprocess.run([sys.executable, "-c", ""]))
    thread.start()
    thread.join()

def test_hides_that_it_starts():
    try:
        subprocess.run([sys.executable, "-c", ""])
    except BaseException:
        raise AssertionError("no process") from None

def test_compiles():
    import torch
    assert torch.compile(torch.sin, backend="eager")(torch.zeros(1)) == 0

def test_asks_inductor():
    import torch
    from torch._inductor import compile as compiled
    from torch.fx import symbolic_trace
    compiled(symbolic_trace(torch.nn.ReLU()), [torch.zeros(1)])

def test_fails():
    assert 1 + 1 == 3
"""


def test_a_pure_run_leaves_exactly_what_compiles_or_starts_a_process(tmp_path):
    (tmp_path / "test_some.py").write_text(SOME)
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "--pure", "-rA"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    ran = subprocess.run(
        [*command, "--rootdir", ".", "test_some.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert "PASSED test_some.py::test_adds" in ran.stdout, ran.stdout + ran.stderr
    assert "FAILED test_some.py::test_fails" in ran.stdout
    assert "1 failed, 1 passed, 9 skipped" in ran.stdout
