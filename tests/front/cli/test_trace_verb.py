"""`torchsleuth trace` on real programs: the capture as a tree, and a debug folder whose scripts run by themselves."""

import json
import re
import subprocess
import sys

import pytest

from program_runs import environment, sleuth, write_program

PROGRAM = """
    import torch

    def helper(x):
        return x.relu() + 1

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.seen = []

        def forward(self, x):
            y = helper(self.linear(x))
            self.seen.append(1)
            print("a break")
            return (y * 2).sum()

    torch.compile(Model(), backend="aot_eager")(torch.randn(3, 4)).backward()
"""


def traced(folder, source, *options, env=None):
    path = write_program(folder, source)
    ran = sleuth("trace", "--json", *options, path, cwd=folder, env=env)
    assert ran.stdout, ran.stderr
    return ran, json.loads(ran.stdout)


def walk(node):
    yield node
    for inner in node.get("inside", ()):
        yield from walk(inner)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trace")
    return (folder, *traced(folder, PROGRAM, "--instructions", "--artefacts", "all", "--log", "dynamo=debug"))


def test_the_tree_shows_what_was_inlined_where_it_broke_and_what_it_changes(whole):
    _, ran, told = whole
    assert ran.status == 0 and "a break" in ran.stderr
    first, rest = told["frames"]
    assert (first["function"], first["line"], first["outcome"]) == ("Model.forward", 13, "compiled")
    assert [attempt["how"] for attempt in first["attempts"]] == ["started again", "returned"]
    nodes = list(walk(first["attempts"][-1]))
    calls = {node["function"]: node for node in nodes if node["kind"] == "call"}
    assert calls["helper"]["called_from"] == 14 and calls["helper"]["line"] == 4
    assert calls["helper"]["instructions"] > 3 and calls["helper"]["seconds"] > 0
    (subgraph,) = [node for node in nodes if node["kind"] == "subgraph"]
    assert subgraph["graph_break"] and subgraph["line"] == 16 and subgraph["calls"] >= 3
    (effects,) = [node for node in nodes if node["kind"] == "side effects"]
    changed = effects["effects"][0]
    assert changed["object"] == "L['self'].seen" and changed["lines"][0].endswith("program.py:15")
    assert any(guard["kind"] == "TENSOR_MATCH" and guard["name"] == "L['x']" for guard in first["guards"])
    (end,) = [node for node in walk(rest["attempts"][-1]) if node["kind"] == "subgraph"]
    assert not end["graph_break"] and end["why"] == "the function returns"


def test_each_instruction_is_there_on_request_and_no_more_than_were_traced(whole):
    _, _, told = whole
    (attempt,) = told["frames"][1]["attempts"]
    instructions = [node for node in attempt["inside"] if node["kind"] == "instruction"]
    assert len(instructions) == attempt["instructions"]
    assert {"RETURN_VALUE", "LOAD_FAST"} <= {node["op"] for node in instructions}


def test_the_debug_folder_holds_each_stage_and_its_scripts_run_by_themselves(whole, tmp_path):
    folder, _, told = whole
    debug = folder / "cases" / "runs" / told["run"] / "debug"
    assert json.loads((debug / "index.json").read_text())["files"] == told["debug"]["files"]
    stages = {(each["graph"], each["stage"]): debug / each["file"] for each in told["debug"]["files"]}
    for stage in (
        "bytecode",
        "new-bytecode",
        "captured",
        "captured-runnable",
        "captured-diagram",
        "joint",
        "forward-graph",
        "backward-graph",
    ):
        assert stages["0/0", stage].is_file(), stage
        assert f"]({stages['0/0', stage].relative_to(debug)})" in (debug / "index.md").read_text()
    assert "relu" in stages["0/0", "captured"].read_text()
    assert "LOAD_GLOBAL" in stages["0/0", "bytecode"].read_text()
    assert "__compiled_fn" in stages["0/0", "new-bytecode"].read_text()
    # Without anything of torchsleuth's, from another folder, in a fresh process.
    script = stages["0/0", "captured-runnable"]
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}
    ran = subprocess.run(
        [sys.executable, "-P", script], cwd=tmp_path, env=bare, capture_output=True, text=True, timeout=250
    )
    assert ran.returncode == 0 and ran.stdout.splitlines()[-1] == "NOT REPRODUCED", ran.stdout + ran.stderr


def test_torchs_own_trace_and_the_log_are_kept_beside_it(whole):
    folder, ran, told = whole
    (trace,) = (folder / "cases" / "runs" / told["run"]).glob("torch-trace-*.log")
    entries = [line.split("] ", 1)[1] for line in trace.read_text().splitlines() if line.startswith("V")]
    # As tlparse reads them: a glog prefix, then JSON; the text of an entry follows, indented.
    assert any("dynamo_output_graph" in json.loads(entry) for entry in entries)
    (log,) = (folder / "cases" / "runs" / told["run"]).glob("compiler-*.log")
    assert "TRACE LOAD_FAST" in log.read_text() and "TRACE LOAD_FAST" in ran.stderr


def test_the_page_stands_alone_and_holds_every_frame(whole):
    folder, _, told = whole
    beside = folder / "cases" / "runs" / told["run"]
    page = (beside / "index.html").read_text()
    assert "Model.forward" in page and "src=" not in page
    links = re.findall(r'href="([^"]*)"', page)
    assert links and all(link.startswith("#") or (beside / link).exists() for link in links), links


def test_artefacts_can_be_switched_off(tmp_path):
    _, told = traced(tmp_path, PROGRAM, "--artefacts", "graphs")
    assert {each["stage"] for each in told["debug"]["files"]} == {
        "captured",
        "joint",
        "forward-graph",
        "backward-graph",
    }
    assert not list((tmp_path / "cases" / "runs" / told["run"]).glob("torch-trace-*"))
    assert all(node["kind"] != "instruction" for node in walk(told["frames"][0]["attempts"][-1]))


@pytest.mark.parametrize(
    ("options", "why"),
    [(("--artefacts", "everything"), "graphs, runnable"), (("--log", "kernel=debug"), "PART=LEVEL")],
)
def test_a_name_that_does_not_exist_is_one_clear_sentence(tmp_path, options, why):
    ran = sleuth("trace", *options, write_program(tmp_path, PROGRAM), cwd=tmp_path)
    assert ran.status == 2 and why in ran.stderr and "Traceback" not in ran.stderr


def test_a_program_that_dies_in_the_middle_of_a_compile_leaves_what_was_captured_until_then(tmp_path):
    source = """
        import os, torch

        def dying(gm, inputs):
            os.kill(os.getpid(), 9)

        torch.compile(lambda x: x.sin(), backend="eager")(torch.ones(2))
        torch.compile(lambda x: x.cos(), backend=dying)(torch.ones(2))
    """
    ran, told = traced(tmp_path, source)
    assert ran.status == 137
    assert [frame["outcome"] for frame in told["frames"]] == ["compiled", "not ended"]


@pytest.mark.slow
def test_inductors_stages_are_there_even_if_its_caches_are_warm(tmp_path):
    source = """
        import torch

        @torch.compile
        def step(x):
            y = x.sin()
            return y, (y * 2).sum(-1, keepdim=True) + y

        step(torch.randn(64, 64, requires_grad=True))[1].sum().backward()
    """
    env = environment(tmp_path)
    sleuth("profile", write_program(tmp_path, source), cwd=tmp_path, env=env)
    _, told = traced(tmp_path, source, "--artefacts", "+profile", env=env)
    debug = tmp_path / "cases" / "runs" / told["run"] / "debug"
    text = {each["stage"]: (debug / each["file"]).read_text() for each in told["debug"]["files"]}
    for direction in ("forward", "backward"):
        for stage in (
            "graph",
            "runnable",
            "transformed",
            "ir-before-fusion",
            "ir-after-fusion",
            "code",
            "compile-profile",
        ):
            assert text[f"{direction}-{stage}"], stage
    assert "FusedSchedulerNode" not in text["forward-ir-before-fusion"]
    assert "FusedSchedulerNode" in text["forward-ir-after-fusion"]
    assert "async_compile" in text["forward-code"] and "cumulative" in text["forward-compile-profile"]


def test_what_the_compiler_logged_before_a_failure_is_in_the_case(tmp_path):
    source = """
        import torch

        def refuses(gm, inputs):
            raise RuntimeError("no kernel for this")

        torch.compile(lambda x: x.sin(), backend=refuses)(torch.ones(2))
    """
    path = write_program(tmp_path, source)
    ran = sleuth("run", "--record-only", "--log", "dynamo=info", path, cwd=tmp_path)
    log = ran.file("compiler.log")
    assert "Step 1: torchdynamo start tracing" in log and "Step 1: torchdynamo start tracing" in ran.stderr
    assert "TRACE LOAD_FAST" not in log  # that is debug
