"""A trial fails as the script would, and stops as soon as it is decided."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from torchsleuth.core.cases.record import AmbientState, CompileSettings
from torchsleuth.core.processes.limits import Limits
from torchsleuth.core.protocol.trials import Trial
from torchsleuth.script_runtime.signature import Signature, fails_the_same_way
from torchsleuth.search.workers.pool import Workers
from torchsleuth.torch_core.tensors import describe_inputs
from torchsleuth.torch_internals.compile_stages import failing_stage

# A compiler with a bug: what a trial's own definitions may do, for a test.
NO_RELU = """
import torch._inductor.lowering as lowering
def broken_relu(x):
    raise NotImplementedError("relu cannot be lowered on Tuesdays")
lowering.lowerings[torch.ops.aten.relu.default] = broken_relu
"""
SEGV_RELU = NO_RELU.replace("raise NotImplementedError(", "import ctypes; ctypes.string_at(8); print(")
HANG_RELU = NO_RELU.replace("raise NotImplementedError(", "import time; time.sleep(1000); print(")
NO_CODE = """
import torch._inductor.scheduler as scheduler
def broken_codegen(self, *args):
    raise AssertionError("the scheduler lost a buffer on its way")
scheduler.Scheduler.codegen = broken_codegen
"""
BACKEND = """
def backend(gm, inputs):
    for node in gm.graph.nodes:
        if node.target is torch.relu:
            raise KeyError(node.name)
    return gm
"""
LOWERING = Signature(
    "compile_error",
    "compile",
    ("torch._inductor.exc.InductorError", "torch._inductor.exc.LoweringException", "NotImplementedError"),
    "relu cannot be lowered on Tuesdays",
)


def aten_trial(call: str, expected: Signature = LOWERING, embedded: str = NO_RELU) -> Trial:
    return _trial(f"torch.ops.aten.{call}", expected, embedded, level="aot")


def _trial(call: str, expected: Signature, embedded: str, **settings: str) -> Trial:
    graph = (
        f"class Repro(torch.nn.Module):\n    def forward(self, a):\n        b = {call}\n        return (b,)\n"
    )
    return Trial(
        graph,
        expected,
        CompileSettings(state=AmbientState(), **settings),
        placeholders=("a",),
        inputs=describe_inputs([torch.zeros(8)]).to_json(),
        embedded=embedded,
    )


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    with Workers(1, limits=Limits(compile=120, run=60)) as made:
        yield made


def test_the_server_is_warm_and_has_one_thread(workers):
    hello = workers.wait_ready(120)
    # A torch built for CUDA may wake the driver when it is imported, which has a thread of its own.
    assert hello.threads == 1 or torch.version.cuda
    assert hello.facts["torch"] == torch.__version__
    assert hello.facts["kernel_threads"] >= 1


def test_a_lowering_that_fails_is_found_with_its_signature(workers):
    outcome = workers.run(aten_trial("relu.default(a)"))
    assert outcome.error is None
    assert fails_the_same_way(outcome.signature, LOWERING)
    assert "relu cannot be lowered" in outcome.text


def test_a_graph_that_lowers_is_decided_without_the_cpp_compiler(workers):
    workers.wait_ready(120)
    kernels = set((workers.folder / "kernels").rglob("*.main.so"))
    outcome = workers.run(aten_trial("sinh.default(a)"))
    assert outcome.signature is None and outcome.error is None
    assert outcome.seen.stopped_early
    # The one kernel that may be there is the server's own.
    assert len(set((workers.folder / "kernels").rglob("*.main.so")) - kernels) <= 1


def test_a_joint_graph_whose_passes_end_is_decided_before_either_of_its_parts_is_compiled(workers):
    frames = ("torch/_inductor/fx_passes/joint_graph.py:f",)
    expected = Signature("compile_error", "compile", ("RuntimeError",), "no", frames)
    no_compile = "import torch._inductor.graph as graph\ngraph.GraphLowering.run = lambda *_: print(compiled_after_all)\n"
    trial = _trial("torch.sinh(a)", expected, no_compile, level="dynamo")
    trained = describe_inputs([torch.zeros(8, requires_grad=True)]).to_json()
    outcome = workers.run(dataclasses.replace(trial, inputs=trained))
    assert outcome.signature is None and outcome.error is None
    assert outcome.seen.stopped_early


def test_what_one_trial_changes_is_gone_in_the_next(workers):
    assert workers.run(aten_trial("relu.default(a)"), fresh=True).fails_like(LOWERING)
    assert workers.run(aten_trial("relu.default(a)", embedded="")).signature is None


@pytest.mark.parametrize(("definitions", "signal_name"), [(SEGV_RELU, "SIGSEGV")])
def test_a_compiler_that_crashes_is_a_crash_while_compiling(workers, definitions, signal_name):
    expected = Signature("crash", "compile", signal=signal_name)
    assert workers.run(aten_trial("relu.default(a)", expected, definitions)).signature == expected


def test_a_compiler_that_hangs_is_a_hang_while_compiling(workers):
    expected = Signature("hang", "compile")
    trial = aten_trial("relu.default(a)", expected, HANG_RELU)
    outcome = workers.run(trial, limits=Limits(compile=3))
    assert outcome.signature == expected
    assert "broken_relu" in outcome.text


def test_a_trial_killed_while_it_draws_a_progress_bar_does_not_hang_those_after_it(workers):
    drawing = "import time, tqdm\ntqdm.tqdm.get_lock().acquire()\ntime.sleep(1000)\n"
    hung = workers.run(aten_trial("neg.default(a)", embedded=drawing), limits=Limits(setup=1))
    assert hung.error is not None
    bar = "import tqdm\nlist(tqdm.tqdm(range(3)))\n"
    after = workers.run(aten_trial("cos.default(a)", embedded=bar), limits=Limits(setup=5))
    assert after.error is None


def test_a_backend_of_the_program_is_tried_on_the_captured_graph(workers):
    expected = Signature("compile_error", "compile", ("KeyError",), "'b'", ("trial.py:backend",))
    assert workers.run(_trial("torch.relu(a)", expected, BACKEND, backend="backend")).fails_like(expected)
    passed = workers.run(_trial("torch.neg(a)", expected, BACKEND, backend="backend"))
    assert passed.signature is None and passed.seen.stopped_early


def test_definitions_that_cannot_be_set_up_tell_nothing_about_the_bug(workers):
    outcome = workers.run(aten_trial("relu.default(a)", embedded="import no_such_module"))
    assert outcome.signature is None
    assert "no_such_module" in outcome.error


def test_an_isolated_trial_is_a_fork_of_the_server_and_finds_the_compiler_loaded(workers):
    look = (
        "import os, sys\n"
        f"assert os.getppid() == {workers._server.pid}\n"
        "loaded = {'torch._dynamo.eval_frame', 'torch._inductor.compile_fx', 'torch._inductor.lowering'}\n"
        "assert loaded <= set(sys.modules), loaded - set(sys.modules)\n"
    )
    outcome = workers.run(aten_trial("relu.default(a)", embedded=look + NO_RELU), fresh=True)
    assert outcome.error is None and outcome.fails_like(LOWERING)


@pytest.mark.slow
def test_the_whole_way_is_gone_where_the_failure_is_expected_in_the_run(workers):
    expected = Signature("runtime_error", "run", ("RuntimeError",), "whatever")
    outcome = workers.run(aten_trial("sinh.default(a)", expected, ""))
    assert outcome.signature is None and not outcome.seen.stopped_early


@pytest.mark.slow
def test_an_error_of_the_scheduler_is_found_and_its_absence_decided_before_the_cpp_compiler(workers):
    found = workers.run(aten_trial("sinh.default(a)", Signature("runtime_error", "run"), NO_CODE), fresh=True)
    assert found.signature.exceptions[-1] == "AssertionError"
    expected = dataclasses.replace(found.signature, frames=("torch/_inductor/graph.py:codegen",))
    passed = workers.run(aten_trial("cosh.default(a)", expected, ""))
    assert passed.signature is None and passed.seen.stopped_early


@pytest.mark.parametrize(
    ("exceptions", "frames", "stage"),
    [
        (["torch._inductor.exc.LoweringException", "KeyError"], ["trial.py:f"], "lowering"),
        (["KeyError"], ["torch/_inductor/lowering.py:cat"], "lowering"),
        (["RuntimeError"], ["torch/_inductor/fx_passes/fuse_attention.py:_sfdp_replacement_5"], "joint"),
        (["AssertionError"], ["torch/_inductor/fx_passes/post_grad.py:f"], "codegen"),
        (["AssertionError"], ["torch/_inductor/scheduler.py:fuse"], "codegen"),
        (["AssertionError"], ["torch/_inductor/codegen/cpp.py:store"], "codegen"),
        (["torch._inductor.exc.CppCompileError"], ["torch/_inductor/codegen/cpp.py:x"], None),
        (["KeyError"], ["torch/_inductor/codecache.py:load", "torch/_inductor/graph.py:codegen"], None),
        (["CompilationError"], ["triton/compiler/compiler.py:make_ir"], None),
        (["KeyError"], ["model.py:forward"], None),
        ([], [], None),
    ],
)
def test_the_stage_of_a_failure_is_told_where_it_is_sure(exceptions, frames, stage):
    assert failing_stage(exceptions, frames) == stage


ALWAYS_DIES = """
import ctypes
@torch.library.custom_op("dies::everywhere", mutates_args=())
def everywhere(x: torch.Tensor) -> torch.Tensor:
    ctypes.string_at(8)
    return x.clone()
@everywhere.register_fake
def _(x):
    return torch.empty_like(x)
"""


def test_a_crash_that_comes_without_the_compiler_too_is_not_the_crash_looked_for(workers):
    crash = Signature("crash", "run", signal="SIGSEGV")
    trial = _trial("torch.ops.dies.everywhere.default(a)", crash, ALWAYS_DIES, level="aot")
    outcome = workers.run(dataclasses.replace(trial, must_pass_in_eager=True))
    assert (outcome.signature.kind, outcome.signature.phase) == ("crash", "eager")
    assert not outcome.fails_like(crash)


SEVERAL_KERNELS = """\
class Repro(torch.nn.Module):
    def forward(self, a):
        b = torch.ops.aten.cumsum.default(a, 0)
        c = torch.ops.aten.cos.default(b)
        d = torch.ops.aten.cumsum.default(c, 1)
        e = torch.ops.aten.amax.default(d, [1])
        return (e,)
"""


@pytest.mark.parametrize(("kind", "together"), [("accuracy", True), ("runtime_error", False)])
def test_where_only_numbers_count_the_kernels_of_a_trial_are_built_at_once(workers, kind, together):
    before = set(built(workers))
    expected = Signature(kind, "run", outputs=("outputs[0]",) if kind == "accuracy" else ())
    one_call = _trial("a", expected, "", level="aot")
    inputs = describe_inputs([torch.ones(16, 16)]).to_json()
    outcome = workers.run(dataclasses.replace(one_call, graph=SEVERAL_KERNELS, inputs=inputs))
    assert outcome.error is None and outcome.signature is None
    kernels = [path.read_text().count("void kernel_") > 1 for path in set(built(workers)) - before]
    assert kernels and any(kernels) is together


def built(workers):
    """The source files of kernels that its trials have built."""
    return (workers.folder / "kernels").rglob("*.main.cpp")
