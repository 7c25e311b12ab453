"""A failure that a program catches and meets again and again is kept once, and counted."""

import json

from program_runs import run_watched

CAUGHT_AT_RUN = """
    import torch

    def backend(graph, inputs):
        def run(*args):
            raise RuntimeError("the kernel refuses these numbers")
        return run

    @torch.compile(backend=backend)
    def step(x):
        return x.sin() + 1

    for number in range(20):
        try:
            step(torch.full((65536,), float(number)))
        except RuntimeError:
            pass
"""

CAUGHT_AT_COMPILE = """
    import os, torch

    def backend(graph, inputs):
        raise RuntimeError("the compiler refuses this graph")

    @torch.compile(backend=backend)
    def step(x):
        return x.sin() + 1

    spool = os.path.join(os.environ["TORCHSLEUTH_CASES"], ".spool")
    for number in range(20):
        try:
            step(torch.ones(4))
        except Exception:
            pass
    found = [name for _, folders, _ in os.walk(spool) for name in folders if name.startswith("g")]
    print("records", len(found))
"""


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_the_values_of_a_failure_in_a_loop_are_kept_once_and_it_is_counted(tmp_path):
    ran = run_watched(tmp_path, CAUGHT_AT_RUN, "--record-only")
    assert ran.status == 3
    assert ran.case["seen"] == 20
    inputs = tmp_path / "cases" / ran.case["id"] / "inputs"
    assert 65536 * 4 < size_of(inputs) < 2 * 65536 * 4 + 4096
    assert json.loads(ran.file("inputs.json"))["inputs"]


def test_the_records_of_a_compile_that_fails_in_a_loop_do_not_pile_up(tmp_path):
    ran = run_watched(tmp_path, CAUGHT_AT_COMPILE, "--record-only")
    assert ran.case["seen"] == 20
    assert ran.stdout == "records 1\n"


TRAINS = """
    import torch

    model = torch.compile(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)))
    for step in range(6):
        model(torch.ones(2, 4) + step).sum().backward()
"""


def test_a_wrong_forward_in_a_loop_is_one_case_and_not_one_of_the_graph_around_it_as_well(tmp_path):
    ran = run_watched(tmp_path, TRAINS, "--check-accuracy", "--record-only", fault="aten.relu.default:wrong")
    forward = [case for case in ran.cases if case["direction"] == "forward"]
    assert [(case["after"], case["seen"]) for case in forward] == [("aot", 3)]
