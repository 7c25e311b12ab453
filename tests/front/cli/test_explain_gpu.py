"""On a GPU: kernels go through Triton, variants are timed, graphs are recorded; each is told as what it is."""

import json
import subprocess
import sys

import pytest

from program_runs import environment, sleuth, write_program

pytestmark = pytest.mark.gpu

TUNED = """
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 512)).cuda().half()

    @torch.compile(mode="max-autotune-no-cudagraphs")
    def tuned(x):
        return net(x)

    @torch.compile
    def plain(x):
        y = x.sin() + 1
        torch._dynamo.graph_break()
        return (y * 2).sum()

    for rows in (256, 384):
        x = torch.randn(rows, 512, device="cuda", dtype=torch.float16)
        print(rows, plain(tuned(x)).shape)
"""


def told_by(verb, folder, source, *options):
    ran = sleuth(verb, "--json", *options, write_program(folder, source), cwd=folder)
    assert ran.status == 0, ran.stderr
    return json.loads(ran.stdout)


def test_triton_and_autotuning_have_their_share_and_the_phases_add_up(tmp_path):
    told = told_by("profile", tmp_path, TUNED)
    phases = {row["name"]: row["seconds"] for row in told["by_phase"]}
    assert phases.get("C++/Triton", 0) > 0, phases
    assert phases.get("autotuning", 0) > 0, phases
    assert sum(phases.values()) == pytest.approx(told["seconds"], rel=1e-3)
    tuning = {row["function"]: row["seconds"] for row in told["by_graph"]}
    assert tuning["tuned"] > tuning["plain"], told["by_graph"]


def test_recorded_cuda_graphs_have_a_phase(tmp_path):
    source = """
        import torch

        @torch.compile(mode="reduce-overhead")
        def step(x):
            return (x.sin() @ x).relu()

        x = torch.randn(256, 256, device="cuda")
        for _ in range(5):
            step(x)
        torch.cuda.synchronize()
    """
    told = told_by("profile", tmp_path, source)
    phases = {row["name"] for row in told["by_phase"]}
    assert {"C++/Triton", "CUDA graphs"} <= phases, phases


def test_the_debug_folder_of_a_gpu_program_holds_its_triton_code_and_its_scripts_run(tmp_path):
    told = told_by("trace", tmp_path, TUNED, "--artefacts", "all")
    debug = tmp_path / "cases" / "runs" / told["run"] / "debug"
    files = {(each["graph"], each["stage"]): debug / each["file"] for each in told["debug"]["files"]}
    stages = {stage for _, stage in files}
    assert {
        "captured-runnable",
        "forward-ir-before-fusion",
        "forward-ir-after-fusion",
        "forward-code",
    } <= stages
    assert all("triton" in path.read_text() for (_, stage), path in files.items() if stage == "forward-code")
    for script in [path for (_, stage), path in files.items() if stage.endswith("runnable")][:2]:
        ran = subprocess.run(
            [sys.executable, "-P", script],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
        )
        assert ran.stdout.splitlines()[-1] == "NOT REPRODUCED", ran.stdout + ran.stderr


def test_one_watch_tells_breaks_recompilations_and_times(tmp_path):
    ran = sleuth("run", "--explain", "--json", write_program(tmp_path, TUNED), cwd=tmp_path)
    assert ran.status == 0 and ran.cases == [], ran.stderr
    folder = tmp_path / "cases" / "runs" / json.loads(ran.stdout)["run"]
    told = {
        name: json.loads((folder / f"{name}.json").read_text()) for name in ("breaks", "recompiles", "times")
    }
    assert told["breaks"]["graph_break_count"] == 1
    causes = {
        function["place"]["function"]: [cause["cause"] for cause in function["causes"]]
        for function in told["recompiles"]["functions"]
    }
    assert causes["tuned"] == ["shape"]
    assert "autotuning" in {row["name"] for row in told["times"]["by_phase"]}
