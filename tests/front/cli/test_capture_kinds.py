"""Frames of every kind that cannot be captured, and captures that are wrong, each with a script that fails by itself."""

import shutil
import subprocess
import sysconfig

import pytest

from program_runs import run_watched, sleuth
from torchsleuth.core.processes.sealed import why_not_sealable

FRAMES = """
    import asyncio
    import torch

    def attempt(function, *args, **options):
        try:
            torch.compile(function, backend="eager", **options)(*args)
        except Exception as error:
            print(type(error).__name__)

    def helper(y):
        with torch._dynamo.error_on_graph_break(True):
            print("after the break", y)  # resumed
        return y.cos()

    def step(x, scale):
        y = x.sin() * scale
        torch._dynamo.graph_break()
        return helper(y + 1) * scale

    async def later(x):
        await asyncio.sleep(0)  # awaited
        return x + 1

    async def both(x):
        return await later(x.sin()) * 2

    def rows(x):  # yielded
        for row in x:
            yield row * 2

    limit = 0.0
    attempt(step, torch.ones(3), 2.0)
    attempt(both, torch.ones(3), fullgraph=True)
    attempt(rows, torch.ones(3), fullgraph=True)
    attempt(lambda x: x * 2 if x.sum() > limit else x, torch.ones(3), fullgraph=True)  # unnamed
"""


@pytest.mark.slow
def test_resumed_async_generator_and_unnamed_frames_fail_by_themselves(tmp_path):
    ran = run_watched(tmp_path, FRAMES)
    assert ran.stdout == "Unsupported\n" * 4, ran.stderr
    lines = FRAMES.strip("\n").splitlines()
    places = {f"program.py:{n}" for n, line in enumerate(lines, 2) if line.endswith(("ed", "yielded"))}
    assert {case["triage"]["user_line"] for case in ran.cases} == places
    for case in ran.cases:
        assert (case["kind"], case["no_repro"]) == ("capture_error", None), case["no_repro"]
        assert case["verified"]["reproduced"] == 1, ran.stderr


GUARDED = """
    import torch
    from torch._dynamo import guards

    guards.GuardManagerWrapper.check = lambda self, scope: False  # as if what a guard reads changed meanwhile

    def step(x):
        return x + 1

    torch.compile(step, backend="eager")(torch.ones(2))
"""


def test_a_guard_that_fails_at_once_is_a_failure_of_capture(tmp_path):
    ran = run_watched(tmp_path, GUARDED, "--record-only")
    assert (ran.case["kind"], ran.case["triage"]["component"]) == ("capture_error", "dynamo")
    assert "Guard failed on the same frame" in ran.case["signature"]["summary"]
    assert ran.case["triage"]["user_line"] == "program.py:7"


EXTENSION = r"""
#include <Python.h>

static PyObject *twice(PyObject *self, PyObject *value) { return PyNumber_Add(value, value); }
static PyMethodDef methods[] = {{"twice", twice, METH_O, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "scaling", NULL, -1, methods};
PyMODINIT_FUNC PyInit_scaling(void) { return PyModule_Create(&module); }
"""
IN_C = """
    import scaling
    import torch

    def step(x):
        return scaling.twice(x.sin()) + 1

    torch.compile(step, fullgraph=True, backend="aot_eager")(torch.ones(2))
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_function_of_a_c_extension_is_allowed_in_the_graph(tmp_path):
    (tmp_path / "scaling.c").write_text(EXTENSION)
    include = sysconfig.get_paths()["include"]
    build = ["cc", "-shared", "-fPIC", f"-I{include}", "scaling.c", "-o", "scaling.so"]
    subprocess.run(build, cwd=tmp_path, check=True)
    run_watched(tmp_path, IN_C, "--record-only")
    tried = sleuth("workaround", "last", cwd=tmp_path)
    best = tried.case["workarounds"][0]
    assert best["how"] == "import scaling\ntorch.compiler.allow_in_graph(scaling.twice)", tried.stderr
    assert (tried.status, best["verified"], best["program"]) == (0, True, True), tried.stderr


UNGUARDED = """
    import torch

    scale = 2.0
    slope = 3.0

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = 3.0

        def forward(self, x):
            return x * self.factor

    class Steep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * slope

    def scaled(x):
        return x * scale

    def steep(x):
        return Steep.apply(x)

    def unguarded(function):
        options = {"guard_filter_fn": lambda guards: [False for _ in guards]}
        return torch.compile(function, backend="eager", options=options)

    def call_all():
        first(torch.ones(3)), second(torch.ones(3)), third(torch.ones(3, requires_grad=True))

    def change():
        global scale, slope
        scale = slope = net.factor = 5.0

    net = Net()
    first, second, third = unguarded(scaled), unguarded(net), unguarded(steep)
    call_all()
    change()
    call_all()
"""


@pytest.mark.slow
@pytest.mark.skipif(why_not_sealable() is not None, reason="needs processes that can be sealed off")
def test_a_change_that_no_guard_notices_is_in_the_script_of_its_calls(tmp_path):
    ran = run_watched(tmp_path, UNGUARDED, "--check-accuracy")
    cases = {case["triage"]["function"]: case for case in ran.cases}
    wrong = {"scaled": "result", "forward": "result", "steep": "the gradient of args[0]"}
    assert {name: case["signature"]["outputs"][0] for name, case in cases.items()} == wrong, ran.stderr
    for name, changed in (("scaled", "scale"), ("forward", "net.factor"), ("steep", "slope")):
        assert f"\n{changed} = 5.0\nresult = " in ran.file("program.py", cases[name])
        assert cases[name]["verified"]["reproduced"] == 1, (name, ran.stderr)
