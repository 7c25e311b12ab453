"""The watch as objects a program uses: a backend, a guarded compiler, a repro of a graph at hand."""

import subprocess
import sys

import pytest

from program_runs import environment, sleuth, write_program


def run(folder, source, fault=None):
    write_program(folder, source)
    return subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env=environment(folder, fault),
        capture_output=True,
        text=True,
    )


WATCHED = """
    import torch, torchsleuth
    net = torch.nn.Linear(4, 4)
    step = torch.compile(lambda x: net(x).sinh(), backend=torchsleuth.watch("inductor", cases="cases"))
    try:
        step(torch.ones(2, 4)).sum().backward()
        print("passed")
    except Exception as error:
        print("failed", type(error).__name__)
"""


@pytest.mark.slow
def test_a_watched_backend_keeps_its_failures_as_cases_and_says_where(tmp_path):
    healthy = run(tmp_path / "healthy", WATCHED)
    assert healthy.stdout == "passed\n" and "torchsleuth" not in healthy.stderr
    assert not list((tmp_path / "healthy" / "cases").glob("*/case.json"))
    failing = run(tmp_path / "failing", WATCHED, "aten.sinh.default:raise")
    assert failing.stdout == "failed InductorError\n", failing.stderr
    case = sleuth("list", cwd=tmp_path / "failing").case
    assert case["after"] == "aot" and f"torchsleuth: case {case['id']}" in failing.stderr


def test_the_crash_of_a_watched_backend_becomes_a_case_with_the_next_run(tmp_path):
    died = run(tmp_path, WATCHED, "aten.sinh.default:segv")
    assert died.returncode == -11
    listed = sleuth("list", cwd=tmp_path)
    assert listed.cases == [] and "1 program that died has left a record" in listed.stderr
    (tmp_path / "healthy.py").write_text("print('healthy')")
    ran = sleuth("run", "healthy.py", cwd=tmp_path)
    assert ran.stdout == "healthy\n"
    assert (ran.case["kind"], ran.case["signature"]["signal"]) == ("crash", "SIGSEGV")
    assert not (tmp_path / "cases" / ".spool").exists()


def test_a_guarded_compiler_passes_everything_through_and_defers_the_real_inputs(tmp_path):
    done = run(
        tmp_path,
        """
        import torch, torchsleuth
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd

        class Refused(Exception):
            pass

        seen = []

        def compiler(gm, example_inputs, *, speed="slow"):
            seen.append((type(example_inputs[0]).__name__, speed))
            for node in list(gm.graph.nodes):
                if "sinh" in str(node.target):
                    raise Refused("no sinh")
                if "cosh" in str(node.target):
                    node.target = torch.ops.aten.exp.default  # the compiler changes its graph
            gm.recompile()
            def run(*args):
                if len(args) and args[0].numel() == 3:
                    raise Refused("no threes")
                return gm(*args)
            return make_boxed_func(run)

        guarded = torchsleuth.wrap_compiler_debug(compiler, "mine", cases="cases")
        backend = aot_autograd(fw_compiler=lambda gm, inputs: guarded(gm, inputs, speed="fast"))

        def attempt(fn, x):
            try:
                print(torch.compile(fn, backend=backend, dynamic=False)(x).shape)
            except Exception as error:
                print(type(getattr(error, "inner_exception", error)).__name__)

        attempt(lambda x: x.cosh() + 1, torch.ones(2))
        attempt(lambda x: x.sinh() + 1, torch.ones(2))
        attempt(lambda x: x.cosh() + 2, torch.ones(3))
        print(seen[0])
        """,
    )
    assert done.stdout.splitlines() == [
        "torch.Size([2])",
        "Refused",
        "Refused",
        "('FakeTensor', 'fast')",
    ], done.stderr
    listed = sleuth("list", cwd=tmp_path)
    kinds = {case["kind"]: case for case in listed.cases}
    assert kinds.keys() == {"compile_error", "runtime_error"}
    graph = (tmp_path / "cases" / kinds["runtime_error"]["id"] / "graph.py").read_text()
    assert "aten.cosh" in graph and "aten.exp" not in graph  # as it was before the compiler changed it
    for case in listed.cases:
        verified = sleuth("verify", case["id"], "--times", "1", cwd=tmp_path)
        assert verified.status == 0, verified.stderr


def test_a_graph_at_hand_is_written_as_a_script_that_runs_with_and_without_its_values(tmp_path):
    done = run(
        tmp_path,
        """
        import io, shutil, torch, torchsleuth
        from torch.fx.experimental.proxy_tensor import make_fx
        x = torch.randn(3, 4).t()
        gm = make_fx(lambda x: (x.sinh() + x.sum(),))(x)
        with open("repro.py", "w") as file:
            torchsleuth.save_graph_repro(file, gm, [x], "inductor", save_dir="inputs")
        texts = []
        for _ in range(2):
            out = io.StringIO()
            torchsleuth.save_graph_repro(out, gm, [x], stable_output=True)
            texts.append(out.getvalue())
        print(texts[0] == texts[1], torch.__version__ in texts[0])
        """,
    )
    assert done.stdout == "True False\n", done.stderr
    args = subprocess.run(
        [sys.executable, "repro.py", "get_args"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert "torch.float32 [4, 3] stride [1, 4] on cpu" in args.stdout, args.stderr
    for fault, answer in (("aten.sinh.default:raise", (1, "REPRODUCED")), (None, (0, "NOT REPRODUCED"))):
        ran = subprocess.run(
            [sys.executable, "repro.py"],
            cwd=tmp_path,
            env=environment(tmp_path, fault),
            capture_output=True,
            text=True,
        )
        assert (ran.returncode, ran.stdout.splitlines()[-1].split(":")[0]) == answer, ran.stderr


def test_the_repro_of_an_exception_that_was_caught_can_be_saved(tmp_path):
    done = run(
        tmp_path,
        """
        import torch, torchsleuth

        def refuse(graph, inputs):
            raise ValueError("no code for this")

        try:
            torchsleuth.save_repro("early")
        except LookupError as why:
            print(why)
        try:
            torch.compile(lambda x: x.sin(), backend=torchsleuth.watch(refuse, cases="cases"))(torch.ones(2))
        except Exception:
            print(torchsleuth.save_repro("saved"))
        """,
    )
    assert done.returncode == 0, done.stderr
    early, path = done.stdout.splitlines()
    assert early.startswith("no failure was recorded in this process") and path == "saved/original.py"
    ran = subprocess.run(
        [sys.executable, path], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True
    )
    assert ran.returncode == 1 and "REPRODUCED" in ran.stdout, ran.stderr


AT_HAND = """
    import torch, torchsleuth
    from torch.fx.experimental.proxy_tensor import make_fx
    x = torch.randn(8)
    gm = make_fx(lambda x: (torch.relu(x.sin() + 1) * 2,))(x)
    for name, backend, more in (
        ("healthy", "eager", {}),
        ("fails", "sleuth_relu_compile_error", {"command": "minify", "save_dir": "kept", "check_str": "no relu"}),
        ("wrong", "sleuth_relu_accuracy_error", {"accuracy": True, "tracing_mode": "real"}),
    ):
        with open(f"{name}.py", "w") as file:
            torchsleuth.save_graph_repro(file, gm, [x], backend, level="dynamo", **more)
    try:
        torchsleuth.save_graph_repro(file, gm, [x], command="shrink")
    except ValueError as error:
        print("shrink" in str(error))
"""


@pytest.fixture(scope="module")
def at_hand(tmp_path_factory):
    """Scripts of a graph at hand, and what one of them answers: the last line and the status."""
    folder = tmp_path_factory.mktemp("at_hand")
    assert run(folder, AT_HAND).stdout == "True\n"

    def script(*command):
        ran = subprocess.run(
            [sys.executable, *command],
            cwd=folder,
            env=environment(folder),
            capture_output=True,
            text=True,
        )
        return folder, ran.returncode, ran.stdout + ran.stderr

    return script


@pytest.mark.slow
def test_a_script_of_a_graph_at_hand_does_what_it_was_written_to_do(at_hand):
    _, status, said = at_hand("wrong.py")  # accuracy=True
    assert status == 1 and "REPRODUCED: wrong result" in said, said
    _, status, said = at_hand("fails.py")  # command="minify"
    assert status == 0 and "run it: python" in said, said
    _, status, said = at_hand("fails.py", "run")
    assert status == 1 and "REPRODUCED: ReluCompileError" in said, said


def test_without_its_values_such_a_script_says_where_they_were(at_hand):
    folder, *_ = at_hand("fails.py", "get_args")
    (folder / "kept").rename(folder / "away")
    _, status, said = at_hand("fails.py", "run")
    assert status == 3 and "CANNOT TELL" in said and "kept, which is not there" in said
    (folder / "kept").mkdir()
    _, status, said = at_hand("fails.py", "run")
    assert status == 3 and ".safetensors is not in" in said and "damaged:" not in said
    (folder / "kept").rmdir()
    (folder / "away").rename(folder / "kept")


@pytest.mark.parametrize("verb", ["verify", "minify", "analyze"])
def test_of_a_graph_at_hand_in_which_nothing_fails_every_verb_says_so(at_hand, verb):
    _, status, said = at_hand("healthy.py", verb)
    assert status in (1, 2) and ("does not fail here" in said or "in 0 of 3" in said), said
    assert "NoneType" not in said and "bug in torchsleuth" not in said


@pytest.mark.slow
def test_from_level_two_on_a_failure_is_made_small_before_it_goes_on(tmp_path):
    done = run(
        tmp_path,
        """
        import torch, torchsleuth
        watched = torchsleuth.watch("inductor", cases="cases", level=2)
        try:
            torch.compile(lambda x: (x.sin() + 1).sinh() * 2, backend=watched)(torch.ones(3))
        except Exception as error:
            print(type(error).__name__)
        """,
        "aten.sinh.default:raise",
    )
    assert done.stdout == "InductorError\n", done.stderr
    case = sleuth("list", cwd=tmp_path).case
    assert case["minified"]["calls"] == 1 and (tmp_path / "cases" / case["id"] / "repro.py").is_file()
