"""`workaround`: tried on the user's graph and on the user's program, shown with the line to paste."""

import json

import pytest

from program_runs import environment, run_watched, sleuth

TWO_PARTS = """
    import torch

    def wave(x):
        return x.sin() + 1

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(8, 8)

        def forward(self, x):
            y = self.first(x).exp()
            return wave(y) * 2

    out = torch.compile(Net())(torch.ones(2, 8))
    out.sum().backward()
    print("finished")
"""


def workaround(ran, fault, *options, row=None):
    env = environment(ran.folder, fault, **({"SLEUTH_TEST_ROW": row} if row else {}))
    again = sleuth("workaround", ran.case["id"], *options, cwd=ran.folder, env=env)
    return again, {w["name"]: w for w in again.case["workarounds"] or ()}


def test_a_bad_lowering_is_worked_around_on_the_graph_and_on_the_whole_program(tmp_path):
    fault = "aten.sin.default:raise"
    ran = run_watched(tmp_path, TWO_PARTS, "--record-only", fault=fault)
    done, found = workaround(ran, fault, "--program", "--json")
    assert done.status == 0, done.stderr
    case = json.loads(done.stdout)
    best = case["workarounds"][0]
    assert best["name"] == "aten.sin.default kept eager" and best["program"] is True, done.stderr
    assert found["function wave eager"]["verified"] and found["backend aot_eager"]["verified"]
    assert found["function wave eager"]["how"].endswith("above `def wave` in program.py:4")
    assert not list((tmp_path / "cases" / case["id"]).glob(".workarounds*"))


def test_all_without_program_is_a_usage_error(tmp_path):
    assert sleuth("workaround", "last", "--all", cwd=tmp_path).status == 2


@pytest.mark.slow
def test_a_person_sees_their_line_and_what_to_paste(tmp_path):
    fault = "aten.sin.default:raise"
    ran = run_watched(tmp_path, TWO_PARTS, "--record-only", fault=fault)
    done, _ = workaround(ran, fault, "--program", "--all")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("program.py:5") and "x.sin() + 1" in lines[0]
    assert "make_fallback(torch.ops.aten.sin.default, warn=False, override_decomp=True)" in lines
    assert all(w["program"] for w in done.case["workarounds"] if w["verified"]), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("act", ["segv", "hang", "run_raise", "run_abort"])
def test_a_compiler_that_crashes_or_hangs_can_be_worked_around(tmp_path, act):
    fault = f"aten.sin.default:{act}"
    options = ("--timeout", "20") if act == "hang" else ()
    ran = run_watched(tmp_path, TWO_PARTS, *options, fault=fault)
    done, found = workaround(ran, fault, "--program")
    assert done.status == 0, done.stderr
    assert found["aten.sin.default kept eager"]["program"] is True, done.stderr


@pytest.mark.slow
def test_wrong_numbers_of_a_backward_come_with_a_cost(tmp_path):
    fault = "aten.cos.default:wrong"
    ran = run_watched(tmp_path, TWO_PARTS, "--check-accuracy", fault=fault)
    assert ran.case["direction"] == "backward"
    done, _ = workaround(ran, fault, "--program")
    best = done.case["workarounds"][0]
    assert best["name"] == "aten.cos.default kept eager" and best["program"] is True, done.stderr
    assert best["cost"] > 0, best


LOW_PRECISION = """
    import torch

    def f(x):
        return x.sin() * 2

    torch.compile(f)(torch.ones(64, dtype=torch.bfloat16))
"""


@pytest.mark.slow
def test_a_setting_that_helps_is_found_and_is_the_line_to_paste(tmp_path):
    row = "without_casts"
    ran = run_watched(tmp_path, LOW_PRECISION, "--check-accuracy", SLEUTH_TEST_ROW=row)
    done, found = workaround(ran, None, "--program", row=row)
    assert done.status == 0, done.stderr
    flag = found["setting emulate_precision_casts"]
    assert flag["verified"] and flag["how"] == "torch._inductor.config.emulate_precision_casts = True"
    assert done.case["workarounds"][0] == flag and flag["program"] is True, done.stderr


SILU = """
    import torch

    def f(x):
        return torch.nn.functional.silu(x) * 2

    torch.compile(f)(torch.ones(64))
"""


@pytest.mark.slow
def test_a_bad_decomposition_is_taken_out(tmp_path):
    row = "bad_decomposition"
    ran = run_watched(tmp_path, SILU, "--check-accuracy", "--after", "dynamo", SLEUTH_TEST_ROW=row)
    done, found = workaround(ran, None, "--program", row=row)
    whole = found["aten.silu.default not decomposed"]
    assert whole["verified"] and whole["program"] is True, done.stderr


@pytest.mark.slow
def test_the_cured_program_is_no_cure_by_itself(tmp_path):
    """The paste works as it stands: the program with the lines in it passes without torchsleuth."""
    fault = "aten.sin.default:raise"
    paste = (
        "    import torch\n    from torch._inductor.graph import make_fallback\n"
        "    make_fallback(torch.ops.aten.sin.default, warn=False, override_decomp=True)\n"
    )
    changed = TWO_PARTS.replace("    import torch\n", paste, 1)
    assert "finished" in run_watched(tmp_path, changed, fault=fault).stdout
