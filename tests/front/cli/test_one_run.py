"""`run --explain` and `TORCHSLEUTH=1 python program.py`: everything in one run."""

import json
import subprocess
import sys

from program_runs import environment, sleuth, write_program

FAILING = """
    import torch

    def backend(gm, inputs):
        if any(n.target is torch.relu for n in gm.graph.nodes):
            raise RuntimeError("no relu here")
        return gm.forward

    @torch.compile(backend=backend)
    def f(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    f(torch.ones(3)), f(torch.ones(4))
    try:
        torch.compile(lambda x: torch.relu(x), backend=backend)(torch.ones(3))
    except Exception:
        print("caught")
"""


def test_run_collects_everything_beside_its_cases(tmp_path):
    write_program(tmp_path, FAILING)
    ran = sleuth("run", "--explain", "--record-only", "--json", "program.py", cwd=tmp_path)
    assert ran.status == 3, ran.stderr
    document = json.loads(ran.stdout)
    folder = tmp_path / "cases" / "runs" / document["run"]
    assert ran.case["run"] == document["run"] == document["cases"][0]["run"]
    assert json.loads((folder / "breaks.json").read_text())["graph_break_count"] == 1
    assert json.loads((folder / "recompiles.json").read_text())["recompilations"] == 2
    assert json.loads((folder / "times.json").read_text())["seconds"] > 0
    trace = json.loads((folder / "trace.json").read_text())
    assert [frame["outcome"] for frame in trace["frames"]].count("compiled") >= 4
    assert (folder / "profile.svg").is_file()
    index = (folder / "index.html").read_text()
    assert "<h2>Graph breaks</h2>" in index and "<h2>Recompilations</h2>" in index
    assert "1 graph break; " in ran.stderr and "2 recompilations" in ran.stderr
    assert "damaged" not in sleuth("list", cwd=tmp_path).stdout


def python(folder, **more):
    env = environment(folder, TORCHSLEUTH_CASES=str(folder / "cases"), **more)
    return subprocess.run(
        [sys.executable, "program.py"], cwd=folder, env=env, capture_output=True, text=True, timeout=200
    )


def test_a_variable_is_enough_where_the_command_line_cannot_change(tmp_path):
    write_program(tmp_path, FAILING)
    ran = python(tmp_path, TORCHSLEUTH="1")
    assert (ran.returncode, ran.stdout) == (0, "caught\n"), ran.stderr
    assert "1 graph break; " in ran.stderr and "2 recompilations" in ran.stderr
    (index,) = (tmp_path / "cases" / "runs").glob("*/index.html")
    assert str(index) in ran.stderr
    (case,) = (tmp_path / "cases").glob("*/case.json")
    assert "no relu here" in case.read_text()
    assert not list((tmp_path / "cases").glob(".spool/*"))


def test_without_the_variable_nothing_happens(tmp_path):
    write_program(tmp_path, "import torch, sys; print([m for m in sys.modules if 'sleuth.watched' in m])")
    ran = python(tmp_path, TORCHSLEUTH="0")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[]\n", "")
    assert not (tmp_path / "cases").exists()


def test_a_program_may_start_it_itself(tmp_path):
    write_program(
        tmp_path,
        """
        import torchsleuth

        torchsleuth.start()
        import torch

        torch.compile(lambda x: x.sin(), backend="eager")(torch.ones(3))
        """,
    )
    ran = python(tmp_path)
    assert ran.returncode == 0 and "0 graph breaks; 1 graph with 1 operation" in ran.stderr, ran.stderr
