"""`pytest --torchsleuth`, its markers and its fixture, in sessions of their own."""

import importlib.metadata
import json

import pytest

pytestmark = pytest.mark.timeout(600)
# An editable install that is older than the entry point does not have it.
INSTALLED = any(each.name == "torchsleuth" for each in importlib.metadata.entry_points(group="pytest11"))
PLUGIN = () if INSTALLED else ("-p", "torchsleuth.pytest_plugin")


@pytest.fixture
def session(pytester, monkeypatch):
    """Runs a session in a folder of its own: `session(test, "--torchsleuth")`."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(pytester.path / "cache"))

    def run(test: str, *options: str):
        pytester.makepyfile(test_it=test)
        return pytester.runpytest_subprocess(*PLUGIN, "-p", "no:xdist", *options, timeout=500)

    return run


def test_nothing_is_imported_where_nobody_asks(session):
    ran = session(
        """
        import sys

        def test_it():
            ours = {m for m in sys.modules if m.startswith("torchsleuth.")} - {"torchsleuth._version"}
            assert ours == {"torchsleuth.pytest_plugin"} and "torch" not in sys.modules
        """,
        "--strict-markers",
    )
    ran.assert_outcomes(passed=1)


def test_a_failure_of_the_compiler_is_recorded(session, pytester):
    ran = session(
        """
        import torch

        def test_model():
            torch.compile(torch.relu, backend="sleuth_relu_compile_error")(torch.ones(3))
        """,
        "--torchsleuth",
        "--torchsleuth-budget=0",
    )
    ran.assert_outcomes(failed=1)
    (path,) = pytester.path.glob("torchsleuth-cases/*/case.json")
    ran.stdout.fnmatch_lines(
        [f"case {path.parent.name}: compile_error: ReluCompileError*", "repro *original.py"]
    )


@pytest.mark.slow
def test_a_test_that_fails_under_the_compiler_gets_a_case_and_its_repro(session, pytester):
    pytester.makeconftest("def pytest_addoption(parser): parser.addoption('--size', type=int, default=0)\n")
    ran = session(
        """
        import pytest, torch

        @torch.compile(backend="sleuth_relu_compile_error")
        def model(x):
            return torch.relu(x).sin() + 1

        def test_model(pytestconfig):
            model(torch.ones(pytestconfig.getoption("--size")))

        def test_model_again(pytestconfig):
            model(torch.ones(pytestconfig.getoption("--size")))

        def test_of_its_own():
            assert 1 == 2

        def test_healthy():
            assert torch.compile(torch.cos, backend="eager")(torch.zeros(2)).sum() == 2
        """,
        "--torchsleuth",
        "--torchsleuth-cases=found",
        "--size=3",
        "--junitxml=report.xml",
    )
    ran.assert_outcomes(failed=3, passed=1)
    (case,) = [json.loads(path.read_text()) for path in pytester.path.glob("found/*/case.json")]
    assert case["minified"]["calls"] == 1 and case["verified"]["reproduced"] == 3
    ran.stdout.fnmatch_lines(
        [
            "*- torchsleuth -*",
            f"case {case['id']}: compile_error: ReluCompileError*",
            "your line  test_it.py:5:*torch.relu(x).sin() + 1",
            "repro      *repro.py, fails the same way in 3 of 3",
            "*torch.relu*",
            "*fails as test_it.py::test_model does; see there*",
            f"test_it.py::test_model: torchsleuth show found/{case['id']}",
        ]
    )
    assert "ReluCompileError" in (pytester.path / "report.xml").read_text()


@pytest.mark.slow
def test_a_wrong_result_that_a_test_notices_is_found_in_the_graph(session, pytester):
    ran = session(
        """
        import torch

        def test_numbers():
            x = torch.linspace(-2, 2, 64)
            f = lambda x: torch.relu(x).cos()
            torch.testing.assert_close(torch.compile(f, backend="sleuth_relu_accuracy_error")(x), f(x))
        """,
        "--torchsleuth",
    )
    ran.assert_outcomes(failed=1)
    (case,) = [json.loads(path.read_text()) for path in pytester.path.glob("torchsleuth-cases/*/case.json")]
    assert case["kind"] == "accuracy" and case["minified"]["calls"] == 1
    ran.stdout.fnmatch_lines(["case * accuracy: wrong result*"])


CLAIMS = """
    import pytest, torch

    def broken(x):
        y = x.sin()
        print("hi")
        return y + 1

    whole = lambda x: x.sin() + 1

    @pytest.mark.no_graph_breaks
    def test_breaks():
        torch.compile(broken, backend="eager")(torch.ones(3))

    @pytest.mark.no_graph_breaks
    @pytest.mark.no_recompilations
    def test_whole():
        f = torch.compile(whole, backend="eager")
        f(torch.ones(3)), f(torch.zeros(3))

    @pytest.mark.no_graph_breaks
    def test_nothing_compiled():
        whole(torch.ones(3))

    @pytest.mark.no_recompilations
    def test_recompiles():
        f = torch.compile(lambda x: x.cos(), backend="eager")
        f(torch.ones(3)), f(torch.ones(4, 4))

    @pytest.mark.compiled_equals_eager
    def test_wrong():
        torch.compile(lambda x: torch.relu(x) + 1, backend="sleuth_relu_accuracy_error")(torch.ones(64))

    def test_right(sleuth):
        net = torch.nn.Linear(4, 4)
        with sleuth.compiled_equals_eager() as verdicts, sleuth.no_graph_breaks():
            torch.compile(lambda x: net(x).sum(), backend="aot_eager")(torch.ones(2, 4)).backward()
        assert [verdict.kind for verdict in verdicts] == ["WITHIN_NOISE"]

    def test_nothing_to_compare(sleuth):
        with pytest.raises(AssertionError, match="nothing to compare"), sleuth.compiled_equals_eager():
            pass
"""


def test_what_a_test_claims_is_held_against_the_compiler(session):
    ran = session(CLAIMS, "--strict-markers")
    ran.assert_outcomes(failed=4, passed=3)
    ran.stdout.fnmatch_lines(
        [
            "E*AssertionError: 1 graph break:",
            "E*torchsleuth explain *",
            "E*nothing was compiled in here*",
            "E*AssertionError: 1 recompilation:",
            "E*rank mismatch*",
            "E*torchsleuth recompiles *",
            "E*AssertionError: the compiled result is wrong:",
            "E*DIVERGED*",
        ]
    )


def test_a_claim_about_what_the_compiler_did_is_not_looked_into(session, pytester):
    ran = session(CLAIMS, "--torchsleuth", "-k", "test_breaks or test_recompiles")
    ran.assert_outcomes(failed=2)
    ran.stdout.no_fnmatch_line("*no case*")
    assert not (pytester.path / "torchsleuth-cases").exists()


def test_a_long_repro_is_cut_in_the_report(tmp_path):
    from torchsleuth.pytest_plugin import section_of

    (tmp_path / "repro.py").write_text("\n".join(f"line_{n}" for n in range(100)))
    text = section_of(
        {"id": "a" * 8, "kind": "crash", "signature": {"summary": "it died"}, "path": str(tmp_path)}
    )
    assert "line_59" in text and "line_60" not in text and text.endswith("40 more lines")


@pytest.mark.slow
def test_a_test_that_fails_in_a_worker_is_looked_into_by_the_controller(pytester):
    pytest.importorskip("xdist")
    pytester.makepyfile(
        test_it="""
        import torch

        def test_it():
            torch.compile(torch.relu, backend="sleuth_relu_compile_error")(torch.ones(2))
        """
    )
    ran = pytester.runpytest_subprocess(
        *PLUGIN, "--torchsleuth", "--torchsleuth-budget=0", "-n", "1", timeout=500
    )
    ran.stdout.fnmatch_lines(
        ["case *: compile_error: ReluCompileError*", "test_it.py::test_it: torchsleuth show *"]
    )


@pytest.mark.slow
def test_a_test_that_kills_its_worker_gets_a_case(pytester):
    pytest.importorskip("xdist")
    pytester.makepyfile(
        test_it="""
        import os, torch

        def dies(graph, inputs):
            os.abort()

        def test_it():
            torch.compile(lambda x: x + 1, backend=dies)(torch.ones(2))
        """
    )
    options = ("--torchsleuth", "--torchsleuth-budget=60", "-n", "1", "--max-worker-restart=0")
    ran = pytester.runpytest_subprocess(*PLUGIN, *options, timeout=500)
    ran.stdout.fnmatch_lines(["*crashed while running*", "case *: crash: SIGABRT while compiling"])
