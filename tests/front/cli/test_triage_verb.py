"""One failure per part of the compiler: triage names the part, the operator and the line of the program."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from program_runs import Ran, environment, run_watched, sleuth
from torchsleuth.core.cases.folder import open_case
from torchsleuth.core.cases.model import Triage
from torchsleuth.core.processes.prepared import PreparedInterpreter
from torchsleuth.front.supervise.case_at_work import CaseAtWork, Processes
from torchsleuth.front.supervise.host import SearchHost
from torchsleuth.front.supervise.road import blame
from torchsleuth.front.supervise.scripts import ScriptRunner

HEAD = """
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x):
            y = torch.tanh(self.linear(x))
"""
TAIL = """
    torch.manual_seed(0)
    with torch.no_grad():
        torch.compile(Model(){how})(torch.randn(4, 8))
"""


def program(line: str, before: str = "", how: str = "") -> str:
    return before + HEAD + f"            return {line}\n" + TAIL.format(how=how)


def triaged(folder: Path, source: str, *options: str, **env: str) -> tuple[dict[str, Any], Ran]:
    recorded = run_watched(folder, source, "--record-only", "--check-accuracy", *options, **env)
    assert len(recorded.cases) == 1, recorded.stderr
    ran = sleuth("triage", "last", cwd=folder, env=environment(folder, **env))
    return ran.case["triage"], ran


def line_of(folder: Path, text: str) -> str:
    lines = (folder / "program.py").read_text().splitlines()
    return f"program.py:{next(n for n, line in enumerate(lines, 1) if text in line)}"


SEVERAL = """
    import torch

    class Model(torch.nn.Module):
        def __init__(self, last):
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)
            self.last = last

        def forward(self, x):
            return self.last(torch.tanh(self.linear(x))) * 2 + x

    def silu(y): return torch.nn.functional.silu(y)
    def tan(y): return torch.tan(y)
    def atan(y): return torch.atan(y)
    def cos(y): return torch.cos(y)
    def sin(y): return torch.sin(y)

    torch.manual_seed(0)
    for last in (silu, tan, atan, cos, sin):
        torch.compiler.reset()
        try:
            with torch.no_grad():
                torch.compile(Model(last))(torch.randn(4, 8))
        except Exception as error:
            print(type(error))
"""
FAULTS = {
    "fault": "aten.tan.default:wrong,aten.atan.default:raise",
    "SLEUTH_TEST_ROW": "bad_decomposition,code_that_does_not_compile,without_casts",
}


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> Ran:
    """A case for each of five functions, recorded in one run: in each of them another part of the compiler fails."""
    return run_watched(
        tmp_path_factory.mktemp("several"), SEVERAL, "--record-only", "--check-accuracy", **FAULTS
    )


@pytest.fixture(scope="module")
def loaded(several):
    with PreparedInterpreter(environment(several.folder, **FAULTS)) as made:
        yield made


def case_of(several: Ran, function: str) -> str:
    line = line_of(several.folder, f"def {function}(y)")
    (found,) = [case["id"] for case in several.cases if line in case["graph"]["source_lines"]]
    return found


@pytest.fixture
def blamed(several, loaded, request):
    """What triage finds about one of the functions."""

    def blamed(function: str) -> Triage:
        folder = open_case(several.folder / "cases", case_of(several, function))
        with SearchHost(loaded, "1", folder.path / "minify") as host:
            at_work = CaseAtWork(folder, Processes(ScriptRunner(loaded), host), time.monotonic() + 200, print)
            blame(at_work, 200)
        found = at_work.case.triage
        assert found.user_line == line_of(several.folder, f"def {function}(y)")
        return found

    return blamed


def test_a_bad_decomposition_is_named_with_its_operator(several):
    env = environment(several.folder, **FAULTS)
    ran = sleuth("triage", case_of(several, "silu"), "--json", cwd=several.folder, env=env)
    assert ran.status == 0, ran.stderr
    found = json.loads(ran.stdout)["triage"]
    assert (found["component"], found["part"]) == ("decompositions", "decomposition"), ran.stderr
    assert found["ops"] == ["aten.silu.default"]
    assert found["user_line"] == line_of(several.folder, "def silu(y)") and "silu(y)" in found["code"]
    assert "module: decompositions" in found["labels"]


def test_a_bad_lowering_is_told_from_bad_code_by_interpreting_what_was_lowered(blamed):
    found = blamed("tan")
    assert (found.component, found.part, found.ops) == ("inductor", "lowering", ("aten.tan.default",))
    assert "interpreted" in found.detail


def test_where_a_compile_stopped_is_told_and_confirmed_by_a_run_without_it(blamed):
    found = blamed("atan")
    assert (found.component, found.part, found.ops) == ("inductor", "lowering", ("aten.atan.default",))
    assert "it passes when that operator is kept" in found.detail
    assert found.trials <= 12


def test_generated_code_that_does_not_compile_is_code_generation(blamed):
    found = blamed("cos")
    assert (found.component, found.part, found.ops) == ("inductor", "codegen", ("aten.cos.default",))


def test_a_setting_that_makes_it_vanish_is_named(blamed):
    found = blamed("sin")
    assert found.part == "precision casts"
    assert found.flags == ("torch._inductor.config.emulate_precision_casts = True",)


PASS = """
    import torch
    import torch._inductor.config as config

    def drop_the_sign(graph):
        for node in graph.find_nodes(op="call_function", target={target}):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)

    config.{key} = drop_the_sign
"""


@pytest.mark.parametrize(
    ("key", "subsystem", "target"),
    [
        pytest.param("pre_grad_custom_pass", "pre_grad_passes", "torch.neg", marks=pytest.mark.slow),
        pytest.param(
            "joint_custom_post_pass",
            "joint_graph_passes",
            "torch.ops.aten.neg.default",
            marks=pytest.mark.slow,
        ),
        ("post_grad_custom_pre_pass", "post_grad_passes", "torch.ops.aten.neg.default"),
    ],
)
def test_a_bad_pass_is_named_with_the_number_of_its_application(tmp_path, key, subsystem, target):
    source = program("torch.neg(y) * 2 + x", PASS.format(key=key, target=target))
    found, ran = triaged(tmp_path, source)
    assert ran.status == 0, ran.stderr
    assert (found["component"], found["part"], found["subsystem"]) == ("inductor", key, subsystem), ran.stderr
    assert found["application"] >= 1 and found["user_line"] == line_of(tmp_path, "torch.neg(y)")
    assert any(flag.endswith(key) for flag in found["flags"])
    assert found["labels"] == []  # the pass is the user's own


@pytest.mark.slow
def test_a_lowering_whose_code_raises_is_told_from_bad_code_by_interpreting_what_was_lowered(tmp_path):
    found, ran = triaged(tmp_path, program("torch.sin(y) * 2 + x"), fault="aten.sin.default:run_raise")
    assert ran.status == 0, ran.stderr
    assert (found["component"], found["part"], found["ops"]) == ("inductor", "lowering", ["aten.sin.default"])
    assert found["user_line"] == line_of(tmp_path, "torch.sin(y)")
    assert "interpreted" in found["detail"]


@pytest.mark.slow
def test_where_a_compile_crashed_is_told_and_confirmed_by_a_run_without_it(tmp_path):
    found, ran = triaged(tmp_path, program("torch.sin(y) * 2 + x"), fault="aten.sin.default:segv")
    assert (found["component"], found["part"], found["ops"]) == ("inductor", "lowering", ["aten.sin.default"])
    assert found["user_line"] == line_of(tmp_path, "torch.sin(y)"), ran.stderr
    assert "it passes when that operator is kept" in found["detail"]
    assert found["trials"] <= 12


@pytest.mark.slow
def test_generated_code_that_is_wrong_is_code_generation(tmp_path):
    found, ran = triaged(tmp_path, program("torch.sin(y) * 2 + x"), SLEUTH_TEST_ROW="wrong_code")
    assert (found["component"], found["part"], found["ops"]) == ("inductor", "codegen", ["aten.sin.default"])
    assert "interpreted" in found["detail"], ran.stderr


@pytest.mark.slow
def test_a_pair_of_settings_that_must_come_together_is_named(tmp_path):
    how = (
        ', options={"cpp.min_chunk_size": 256, "cpp.max_horizontal_fusion_size": 8, "epilogue_fusion": False}'
    )
    found, ran = triaged(tmp_path, program("torch.sin(y) * 2 + x", how=how), SLEUTH_TEST_ROW="two_flags")
    keys = {flag.rpartition("config.")[2] for flag in found["flags"]}
    assert keys == {"cpp.min_chunk_size", "cpp.max_horizontal_fusion_size"}, ran.stderr


@pytest.mark.slow
def test_operators_that_are_wrong_only_together_are_a_matter_of_fusion(tmp_path):
    found, ran = triaged(tmp_path, program("torch.cos(y * 3) + x"), SLEUTH_TEST_ROW="wrong_when_fused")
    assert (found["component"], found["part"], found["subsystem"]) == ("inductor", "fusion", "inlining"), (
        ran.stderr
    )
    assert found["user_line"] == line_of(tmp_path, "torch.cos(y")


@pytest.mark.slow
def test_a_failure_that_needs_symbolic_sizes_is_told_so(tmp_path):
    source = program("torch.cumsum(y, 0) + x", how=", dynamic=True")
    found, ran = triaged(tmp_path, source, SLEUTH_TEST_ROW="with_symbols")
    assert "module: dynamic shapes" in found["labels"], ran.stderr
    assert found["ops"] == ["aten.cumsum.default"]


FAKE = """
    import torch

    @torch.library.custom_op("mylib::columns", mutates_args=())
    def columns(x: torch.Tensor) -> torch.Tensor:
        return x.t().contiguous().t() * 2

    @columns.register_fake
    def _(x):
        return torch.empty_like(x)
"""


@pytest.mark.slow
def test_a_fake_kernel_that_does_not_say_what_the_real_one_does_is_found(tmp_path):
    found, ran = triaged(tmp_path, program("torch.ops.mylib.columns(y) * 2 + x", FAKE))
    assert (found["component"], found["part"]) == ("aot_autograd", "fake kernel"), ran.stderr
    assert found["ops"] == ["mylib.columns.default"] and "stride" in found["detail"]
    assert found["user_line"] == line_of(tmp_path, "columns(y)")


BACKEND = """
    import torch

    def my_backend(gm, example_inputs):
        if any(node.target is torch.sigmoid for node in gm.graph.nodes):
            raise RuntimeError("my_backend cannot do sigmoid")
        return gm.forward
"""


@pytest.mark.slow
def test_a_backend_of_the_program_is_told_from_the_compiler(tmp_path):
    found, ran = triaged(tmp_path, program("torch.sigmoid(y) + x", BACKEND, ", backend=my_backend"))
    assert (found["component"], found["part"], found["ops"]) == ("backend", "my_backend", ["torch.sigmoid"])
    assert found["labels"] == [] and found["user_line"] == line_of(tmp_path, "sigmoid(y)"), ran.stderr


def test_a_bug_of_the_program_is_told_with_its_line(tmp_path):
    source = """
        import torch

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.rows = torch.nn.Embedding(10, 8)

            def forward(self, i):
                return self.rows(i).sin() + 1

        with torch.no_grad():
            torch.compile(Model(), backend="aot_eager")(torch.tensor([1, 2, 11]))
    """
    found, ran = triaged(tmp_path, source)
    assert found["component"] == "program" and found["user_line"] == line_of(tmp_path, "self.rows(i)"), (
        ran.stderr
    )
    assert "IndexError" in found["detail"]


@pytest.mark.slow
def test_the_gradient_of_a_call_is_told_with_the_call(tmp_path):
    source = """
        import torch

        def f(x, w):
            y = x * w
            return torch.nn.functional.logsigmoid(y).sum()

        x, w = torch.randn(8, requires_grad=True), torch.randn(8)
        torch.compile(f)(x, w).backward()
    """
    found, ran = triaged(tmp_path, source, fault="aten.exp.default:run_raise")
    assert found["user_line"] == line_of(tmp_path, "logsigmoid"), ran.stderr
    assert ran.case["direction"] == "forward" or "logsigmoid" in found["forward_op"]


@pytest.mark.slow
def test_a_case_that_does_not_fail_any_more_is_said_in_one_sentence(tmp_path):
    recorded = run_watched(
        tmp_path, program("torch.sin(y) + x"), "--record-only", fault="aten.sin.default:raise"
    )
    ran = sleuth("triage", "last", cwd=tmp_path, env=environment(tmp_path))
    assert ran.status == 1 and "does not fail here any more" in ran.stdout, (ran.stderr, recorded.stderr)
    assert ran.case["triage"]["component"] is None and "any more" in ran.case["triage"]["error"]


@pytest.mark.slow
def test_nothing_is_left_where_another_process_could_read_it(tmp_path):
    triaged(tmp_path, program("torch.sin(y) * 2 + x"), fault="aten.sin.default:wrong")
    case = next((tmp_path / "cases").glob("*/case.json")).parent
    assert not (case / ".triage").exists()
    assert not list((tmp_path / "cache").rglob("*bisect*"))


def test_a_failure_of_graph_capture_is_dynamos_with_the_line(tmp_path):
    source = """
        import torch

        @torch.compile(fullgraph=True)
        def f(x):
            y = x + 1
            print(y.sum().item())
            return y

        f(torch.randn(3))
    """
    found, ran = triaged(tmp_path, source)
    assert ran.status == 0 and found["component"] == "dynamo", ran.stderr
    assert found["user_line"] == line_of(tmp_path, "item()") and "module: dynamo" in found["labels"]
