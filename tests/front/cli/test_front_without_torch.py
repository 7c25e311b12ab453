"""The front - the process the person waits at - never imports torch: every verb works where it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from program_runs import environment, write_program

# Only in the front itself: torch is there to be found, and raises when it is imported. What it starts may import it.
FRONT = """
import importlib.machinery, sys

class Refusal:
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name == "torch" else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        raise ImportError("the front imports torch")

sys.meta_path.insert(0, Refusal())
sys.argv[0] = "torchsleuth"
from torchsleuth.front.cli.main import entry
entry()
"""
PROGRAM = """
    import torch
    import torch._inductor.config as config

    config.cpp.inject_relu_bug_TESTING_ONLY = "compile_error"
    torch.compile(lambda x: torch.relu(x.sin()) + 1)(torch.randn(8))
"""
HEALTHY = """
    import torch

    torch.compile(lambda x: x.sin() + 1, backend="eager")(torch.randn(8))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a program whose failure was run through everything."""
    folder = tmp_path_factory.mktemp("front")
    write_program(folder, PROGRAM)
    write_program(folder, HEALTHY, "healthy.py")
    write_program(folder / "healthy", "import torch; torch.compile(torch.cos)(torch.ones(2))", "cos.py")
    ran = front(folder, "run", "--json", "program.py")
    assert ran.returncode == 1, ran.stderr
    case = json.loads(ran.stdout)["cases"][0]
    assert case["triage"]["component"] == "inductor", ran.stderr
    assert case["minified"]["calls"] == 1 and case["verified"]["reproduced"] == 3, ran.stderr
    assert any(each["verified"] for each in case["workarounds"]), ran.stderr
    return folder


def front(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**environment(folder), "TORCHSLEUTH_CASES": str(folder / "cases"), "TORCHSLEUTH_TRACEBACK": "1"}
    command = [sys.executable, "-c", FRONT, *arguments]
    ran = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=280)
    assert "the front imports torch" not in ran.stderr and "internal error" not in ran.stderr, ran.stderr
    return ran


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("list",),
        ("show", "last"),
        ("report", "last"),
        ("verify", "last", "--times", "1"),
        ("triage", "last"),
        ("analyze", "last"),
        ("minify", "last"),
        ("workaround", "last"),
        ("triage", "program.py"),
        ("pack", "last", "-o", "case.zip"),
        ("unpack", "case.zip", "--cases", "unpacked"),
        ("backends",),
        ("doctor",),
        ("bisect", "last", "--releases", "no-such-release"),
        ("replay", "last"),
        ("explain", "healthy.py"),
        ("recompiles", "healthy.py"),
        ("profile", "healthy.py"),
        ("trace", "healthy.py"),
        ("sweep", "healthy", "--backends", "sleuth_eager"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_verb_works_where_the_front_cannot_import_torch(place, arguments):
    ran = front(place, *arguments)
    # A release of that name does not exist, and the case has a graph, no frame: usage errors, told without torch.
    refused = arguments[0] in ("bisect", "replay")
    # A compile error has no numbers to compare.
    expected = 1 if arguments[0] == "analyze" else 2 if refused else 0
    assert ran.returncode == expected, ran.stdout + ran.stderr


def test_every_verb_is_tried_here():
    from torchsleuth.front.cli.main import VERBS

    tried = {
        "run",
        "list",
        "show",
        "report",
        "verify",
        "triage",
        "analyze",
        "minify",
        "workaround",
        "pack",
        "unpack",
        "backends",
        "doctor",
        "bisect",
        "replay",
        "explain",
        "recompiles",
        "profile",
        "trace",
        "sweep",
    }
    # One measures with torch in a process of its own, the other waits for its client (test_mcp).
    assert tried | {"calibrate", "mcp"} == set(VERBS)


@pytest.mark.slow
def test_calibrating_happens_in_a_process_of_its_own(place):
    assert front(place, "calibrate", "--graphs", "1", "--dry-run").returncode == 0
