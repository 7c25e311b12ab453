"""Programs that use what real programs use: each failing graph is written, and its script fails the same way.

Several failing functions stand in one program, each in its own `try`: one case comes of each.
"""

import json
import subprocess
import sys

import pytest

from program_runs import environment, run_watched, sleuth, write_program

ATTEMPTS = """
    import sys
    import torch
    import torch.nn.functional as F
    from torch.utils.checkpoint import checkpoint

    def attempt(name, fn):
        torch._dynamo.reset()
        try:
            fn()
            print(name, "passed")
        except Exception as error:
            print(name, "failed", type(error).__name__)
"""


@pytest.mark.slow
def test_inductor_features_are_written_so_that_they_fail_again(tmp_path):
    source = (
        ATTEMPTS
        + """
    x = torch.randn(6, 8)

    def dynamic():
        y = torch.randn(5, 7)
        torch._dynamo.mark_dynamic(y, 0)
        torch.compile(lambda t: (t * t.shape[0]).sinh().sum())(y)

    def options():
        torch.compile(lambda t: t.sinh() + 1, options={"max_fusion_size": 3, "epilogue_fusion": False})(x)

    def max_autotune():
        torch.compile(lambda t: (t @ t.T).sinh() - 1, mode="max-autotune")(x)

    def mutation_and_aliasing():
        base = torch.zeros(10)
        def f(a, b):
            a.add_(1)
            b.mul_(2)
            return a.sinh() * b.sum()
        torch.compile(f)(base[:6], base[4:])

    def nested_cond():
        def f(t):
            return torch.cond(t.sum() > 0, lambda u: u.sinh(), lambda u: u - 1, (t.cos(),))
        with torch.no_grad():
            torch.compile(f)(x)

    def checkpointed():
        w = torch.randn(8, requires_grad=True)
        f = lambda t: checkpoint(lambda u: (u * w).sinh(), t, use_reentrant=False)
        torch.compile(f)(x).sum().backward()

    def constants():
        table = torch.arange(200.0)
        torch.compile(lambda t: (t.sum() + table * float("nan")).sinh() + torch.tensor([1.0, float("inf")])[0])(x)

    for name, fn in list(globals().items()):
        if callable(fn) and getattr(fn, "__module__", "") == "__main__" and name != "attempt":
            attempt(name, fn)
    """
    )
    ran = run_watched(tmp_path, source, fault="aten.sinh.default:raise")
    failed = [line.split()[0] for line in ran.stdout.splitlines() if " failed " in line]
    assert len(failed) == 7, ran.stdout + ran.stderr
    assert len(ran.cases) == 7, [c["signature"]["summary"] for c in ran.cases]
    assert ran.status == 3
    for case in ran.cases:
        assert case["kind"] == "compile_error" and case["no_repro"] is None, case
        assert case["verified"]["reproduced"] == 1, (case, ran.stderr)
    inputs = [json.loads(ran.file("inputs.json", case)) for case in ran.cases]
    assert any(described["symbols"] for described in inputs)  # dynamic stays dynamic
    scripts = [ran.file("original.py", case) for case in ran.cases]
    assert any("max_fusion_size" in text for text in scripts)
    assert any("max_autotune" in text for text in scripts)
    assert any("class TrueGraph" in text for text in scripts)


@pytest.mark.slow
def test_backends_and_operators_the_script_defines_are_embedded(tmp_path):
    source = (
        ATTEMPTS
        + """
    from torch._dynamo import register_backend

    LIMIT = 2

    class TooMany(Exception):
        pass

    def count(gm, name):
        return sum(name in str(n.target) for n in gm.graph.nodes)

    def picky(gm, example_inputs, **kwargs):
        if count(gm, "relu") >= LIMIT:
            raise TooMany(f"{count(gm, 'relu')} relus, options {kwargs.get('options')}")
        return gm.forward

    @register_backend
    def picky_by_name(gm, example_inputs):
        return picky(gm, example_inputs)

    @torch.library.custom_op("sleuthtest::thrice", mutates_args=())
    def thrice(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    @thrice.register_fake
    def _(x):
        return torch.empty_like(x)

    def two(x):
        return torch.relu(torch.relu(x) - 1)

    def by_callable():
        torch.compile(two, backend=picky, options={"speed": "fast"})(torch.randn(4))

    def by_name():
        torch.compile(lambda x: two(x) + 1, backend="picky_by_name")(torch.randn(4))

    def broken_at_run_time(gm, example_inputs):
        def run(*args):
            raise TooMany("not today")
        return run

    def at_run_time():
        torch.compile(lambda x: two(x) * 2, backend=broken_at_run_time)(torch.randn(4))

    def custom_op():
        torch.compile(lambda x: thrice(x.cos()).sinh())(torch.randn(4))

    for fn in (by_callable, by_name, at_run_time, custom_op):
        attempt(fn.__name__, fn)
    """
    )
    ran = run_watched(tmp_path, source, fault="aten.sinh.default:raise")
    assert len(ran.cases) == 4, ran.stdout + ran.stderr
    kinds = sorted((case["kind"], case["after"]) for case in ran.cases)
    assert kinds == [
        ("compile_error", "aot"),
        ("compile_error", "dynamo"),
        ("compile_error", "dynamo"),
        ("runtime_error", "dynamo"),
    ]
    for case in ran.cases:
        assert case["verified"]["reproduced"] == 1, (case, ran.stderr)
    text = next(ran.file("original.py", c) for c in ran.cases if "options" in c["signature"]["summary"])
    assert "def picky(" in text and "LIMIT = 2" in text and "attempt(" not in text
    assert "program.py" in text.split('"""')[1]  # the script says what it took from where


def test_the_program_s_own_bug_is_told_apart(tmp_path):
    source = (
        ATTEMPTS
        + """
    table = torch.nn.Embedding(10, 4)

    def out_of_range():
        torch.compile(lambda ids: table(ids) * 2)(torch.tensor([1, 30]))

    def wrong_shapes():
        torch.compile(lambda a, b: torch.mm(a.sin(), b))(torch.randn(3, 4), torch.randn(5, 6))

    attempt("wrong_shapes", wrong_shapes)
    attempt("out_of_range", out_of_range)
    """
    )
    ran = run_watched(tmp_path, source)
    captured = [case for case in ran.cases if case["kind"] == "capture_error"]
    ran_wild = [case for case in ran.cases if case["phase"] == "run"]  # a crash in 2.11, an error in 2.13
    assert (len(captured), len(ran_wild)) == (1, 1), ran.stderr
    for case, line in ((ran_wild[0], "program.py:18"), (captured[0], "program.py:21")):
        assert (case["triage"]["component"], case["triage"]["user_line"]) == ("program", line), case
    assert captured[0]["triage"]["ops"] == ["torch.mm"] and captured[0]["no_repro"] is None


def test_the_same_failure_is_counted_and_other_graphs_give_other_cases(tmp_path):
    source = (
        ATTEMPTS
        + """
    f = torch.compile(lambda x: x.sinh() + 1)
    g = torch.compile(lambda x: x.sinh().sinh() * 2)
    for fn in (f, f, g):
        attempt("it", lambda: fn(torch.ones(3)))
    """
    )
    ran = run_watched(tmp_path, source, "--record-only", fault="aten.sinh.default:assert")
    assert sorted(case["seen"] for case in ran.cases) == [1, 2]
    again = run_watched(tmp_path, source, "--record-only", fault="aten.sinh.default:assert")
    assert sorted(case["seen"] for case in again.cases) == [2, 4]
    assert any("seen 4 times" in line for line in again.ours())


def test_keep_going_finds_every_failure_and_the_program_succeeds(tmp_path):
    source = """
        import torch
        x = torch.ones(3)
        print(torch.compile(lambda x: x.sinh() + 1)(x).sum().item() == (x.sinh() + 1).sum().item())
        print(torch.compile(lambda x: x.sinh() * 5)(x).sum().item() == (x.sinh() * 5).sum().item())
    """
    ran = run_watched(tmp_path, source, "--keep-going", "--record-only", fault="aten.sinh.default:raise")
    assert (ran.status, ran.stdout) == (3, "True\nTrue\n")
    assert len(ran.cases) == 2


def test_only_one_function_is_watched_where_that_is_asked_for(tmp_path):
    source = (
        ATTEMPTS
        + """
    @torch.compile
    def mine(x):
        return x.sinh() + 1

    @torch.compile
    def other(x):
        return x.sinh() * 2

    attempt("mine", lambda: mine(torch.ones(2)))
    attempt("other", lambda: other(torch.ones(2)))
    """
    )
    ran = run_watched(tmp_path, source, "--only", "mine", "--record-only", fault="aten.sinh.default:raise")
    assert "program.py:17" in ran.case["graph"]["source_lines"][0], ran.case


def test_level_3_keeps_every_graph_and_pytorch_s_own_variables_are_understood(tmp_path):
    source = "import torch\nprint(torch.compile(lambda x: x.sinh() + 1)(torch.zeros(2)))\n"
    ran = run_watched(tmp_path, source, TORCHDYNAMO_REPRO_LEVEL="3", TORCHDYNAMO_REPRO_AFTER="dynamo")
    assert (ran.status, ran.cases) == (0, []), ran.stderr
    records = list((tmp_path / "cases" / "records").glob("*/p*/g*/record.json"))
    assert [json.loads(p.read_text())["level"] for p in records] == ["dynamo"]


def test_bad_input_gets_one_sentence_and_the_right_status(tmp_path):
    missing = sleuth("run", "nowhere.py", cwd=tmp_path)
    assert (missing.status, len(missing.stderr.splitlines())) == (2, 1) and "nowhere.py" in missing.stderr
    nothing = sleuth("run", cwd=tmp_path)
    assert nothing.status == 2 and "say what to run" in nothing.stderr
    unknown = sleuth("show", "abc", cwd=tmp_path)
    assert (unknown.status, len(unknown.stderr.splitlines())) == (2, 1)
    write_program(tmp_path, "print('ran')")
    (tmp_path / "file").write_text("")
    blocked = sleuth("run", "--cases", "file/cases", "program.py", cwd=tmp_path)
    assert blocked.status == 2 and "ran" not in blocked.stdout and "--cases" in blocked.stderr
    damaged = tmp_path / "cases" / "12345678"
    damaged.mkdir(parents=True)
    (damaged / "case.json").write_text("{not json")
    shown = sleuth("show", "12345678", cwd=tmp_path)
    assert (shown.status, len(shown.stderr.splitlines())) == (2, 1) and "cannot be read" in shown.stderr
    listed = sleuth("list", cwd=tmp_path)
    assert listed.status == 0 and "12345678" in listed.stdout


def test_a_script_that_is_not_ours_cannot_be_verified(tmp_path):
    write_program(tmp_path, "print('hello')")
    ran = sleuth("verify", "program.py", cwd=tmp_path)
    assert ran.status == 2 and "not a script written by torchsleuth" in ran.stderr


@pytest.mark.slow
def test_verify_runs_in_fresh_processes_and_says_when_it_no_longer_fails(tmp_path):
    source = "import torch\ntorch.compile(lambda x: x.sinh() + 1)(torch.ones(2))\n"
    ran = run_watched(tmp_path, source, "--record-only", fault="aten.sinh.default:raise")
    faulty = sleuth(
        "verify", "last", "--times", "2", cwd=tmp_path, env=environment(tmp_path, "aten.sinh.default:raise")
    )
    assert faulty.status == 0 and "in 2 of 2 fresh processes" in faulty.stdout
    script = str(tmp_path / "cases" / ran.case["id"] / "original.py")
    fixed = subprocess.run(
        [sys.executable, script, "verify"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert fixed.returncode == 1 and "in 0 of 3 fresh processes" in fixed.stdout


def test_a_backward_that_fails_before_the_inner_compile_is_cut_after_dynamo_and_differentiated_again(
    tmp_path,
):
    source = """
        import torch

        class Odd(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                return grad

        def refuse_backward(gm, example_inputs):
            from torch._dynamo.backends.common import aot_autograd

            def no(graph, inputs):
                raise ArithmeticError("this backend has no backward")
            return aot_autograd(fw_compiler=lambda g, i: g.forward, bw_compiler=no)(gm, example_inputs)

        net = torch.nn.Linear(3, 3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.compile(lambda x: net(x).float().sum(), backend=refuse_backward)(torch.ones(2, 3))
        loss.backward()
    """
    ran = run_watched(tmp_path, source)
    case = ran.case
    assert (case["after"], case["kind"]) == ("dynamo", "compile_error"), ran.stderr
    assert case["verified"]["reproduced"] == 1, ran.stderr
    assert "'autocast': {'cpu': 'torch.bfloat16'}" in ran.file("original.py")
