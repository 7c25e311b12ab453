"""`pytest --torchsleuth`: a test that fails under torch.compile gets a case, and its report the minimal repro.

Tests run as they do without it. One that fails after something was compiled is run again by itself, in a process of
its own under `torchsleuth run`, so nothing it does - a crash, a hang - can reach the session. With pytest-xdist the
controller does it, also for a test that killed its worker. There are markers and a fixture for what a test can claim
(`torchsleuth.assertions`). Neither torch nor anything else of torchsleuth is imported until one of these is used.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

MARKERS = {
    "no_graph_breaks": "fails where Dynamo breaks a graph while the test is called, or captures nothing",
    "no_recompilations": "fails where a function is compiled again while the test is called",
    "compiled_equals_eager": "fails where a graph gives other numbers than eager, beyond rounding noise",
}
# Beyond its budget: for the test itself, whose fixtures may take a while.
SECONDS_FOR_THE_TEST = 600.0
# Of a repro, what the report of a test shows.
MOST_LINES = 60
# What must not happen twice (other workers, reports written over), and what is ours; those with a value of their own.
_LEFT_OUT = (
    "--torchsleuth",
    "--junit",
    "--report-log",
    "--html",
    "--cov",
    "--numprocesses",
    "--dist",
    "--maxfail",
)
_TAKES_VALUE = frozenset(
    [
        "-n",
        "--numprocesses",
        "--dist",
        "--maxfail",
        "--junit-xml",
        "--junitxml",
        "--report-log",
        "--html",
        "--torchsleuth-cases",
        "--torchsleuth-budget",
        "--torchsleuth-most",
    ]
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, all of which begin with our name."""
    group = parser.getgroup("torchsleuth", "failures under torch.compile")
    group.addoption(
        "--torchsleuth",
        action="store_true",
        help="Run a test that fails under torch.compile once more under watch; its report gets the minimal repro.",
    )
    group.addoption(
        "--torchsleuth-cases", metavar="DIR", help="Folder of the cases (default: torchsleuth-cases)."
    )
    group.addoption(
        "--torchsleuth-budget", type=float, default=120.0, metavar="S", help="Seconds for one failing test."
    )
    group.addoption(
        "--torchsleuth-most",
        type=int,
        default=5,
        metavar="N",
        help="Failing tests that are looked into at most.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Makes the markers known; the detective is there only where somebody asked."""
    for name, about in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {about} (torchsleuth)")
    in_worker = hasattr(config, "workerinput")
    if _is_asked(config) and not in_worker:
        config.pluginmanager.register(Detective(config), "torchsleuth-detective")


def _is_asked(config: pytest.Config) -> bool:
    # A run under watch is ours already, or a person's: `torchsleuth run -m pytest`.
    return bool(config.getoption("--torchsleuth")) and "TORCHSLEUTH_WATCH" not in os.environ


@pytest.fixture
def sleuth() -> ModuleType:
    """What a test can claim: `with sleuth.no_graph_breaks(): ...`, `no_recompilations`, `compiled_equals_eager`."""
    from torchsleuth import assertions

    return assertions


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Holds a marked test to its claims."""
    claims = [name for name in MARKERS if item.get_closest_marker(name) is not None]
    if not claims:
        return (yield)
    from torchsleuth import assertions

    with contextlib.ExitStack() as stack:
        for name in claims:
            stack.enter_context(getattr(assertions, name)())
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Says in the report whether anything was compiled, and may have failed: only the process of the test knows."""
    report = yield
    if report.failed and _is_asked(item.config) and "torch._dynamo" in sys.modules:
        from torchsleuth.assertions import REFUTED_BY
        from torchsleuth.torch_internals.compile_events import has_compiled

        refuted = call.excinfo is not None and hasattr(call.excinfo.value, REFUTED_BY)
        report.torchsleuth_compiled = has_compiled() and not refuted  # type: ignore[attr-defined]
    return report


class Detective:
    """Looks into failing tests, one at a time, and remembers how they failed."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.looked_into = 0
        self.cases: dict[str, str] = {}
        self.first_with: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds our section before anyone shows or stores the report."""
        killed_its_worker = report.when not in ("setup", "call", "teardown")
        if report.failed and (getattr(report, "torchsleuth_compiled", False) or killed_its_worker):
            report.sections.append(("torchsleuth", self._about(report, _message(report))))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The cases once more, where the eye ends up."""
        if self.cases:
            terminalreporter.section("torchsleuth")
            for line in self.cases.values():
                terminalreporter.write_line(line)

    def _about(self, report: pytest.TestReport, message: str) -> str:
        from torchsleuth.script_runtime.signature import normalise_message

        is_claim = message.startswith(("AssertionError", "assert ")) or not message
        alike = normalise_message(message)
        if not is_claim and alike in self.first_with:
            return f"fails as {self.first_with[alike]} does; see there"
        most = self.config.getoption("--torchsleuth-most")
        if self.looked_into >= most:
            return f"not looked into, as {most} failing tests were (--torchsleuth-most)"
        self.looked_into += 1
        self.first_with[alike] = report.nodeid
        return self._looked_into(report, compare=is_claim)

    def _looked_into(self, report: pytest.TestReport, compare: bool) -> str:
        """The test once more, under watch; where it only claims something, its results are compared with eager."""
        import tempfile

        from torchsleuth.core.processes.child import scratch
        from torchsleuth.front.report.html import write_report
        from torchsleuth.front.supervise.program_runs import CannotRunProgram, Program, Watch
        from torchsleuth.front.supervise.whole_program import run_and_investigate

        option = self.config.getoption
        budget = option("--torchsleuth-budget")
        cases = Path(
            option("--torchsleuth-cases") or os.environ.get("TORCHSLEUTH_CASES") or "torchsleuth-cases"
        )
        said: list[str] = []
        with tempfile.TemporaryDirectory(dir=scratch()) as cache:
            test = str(self.config.rootpath / report.nodeid)
            words = [*_kept(self.config.invocation_params.args, option("file_or_dir") or ()), test]
            words += ["-o", f"cache_dir={cache}", *(["-n", "0"] if self._has_xdist() else [])]
            program = Program(
                (sys.executable, "-m", "pytest", *words), str(self.config.invocation_params.dir)
            )
            try:
                run = run_and_investigate(
                    program,
                    watch=Watch(compares=compare),
                    timeout=SECONDS_FOR_THE_TEST + budget,
                    budget=budget,
                    cases_dir=cases,
                    finished=write_report,
                    say=said.append,
                )
            except CannotRunProgram as why:
                return str(why)
        if not run.cases:
            again = "passes" if run.healthy else "was not done in time" if run.timed_out else "fails"
            return f"no case: run by itself under watch the test {again}, and no part of the compiler fails"
        for case in run.cases:
            self.cases[str(case["id"])] = f"{report.nodeid}: torchsleuth show {os.path.relpath(case['path'])}"
        return "\n\n".join([*map(section_of, run.cases), *said])

    def _has_xdist(self) -> bool:
        return self.config.pluginmanager.hasplugin("xdist")


def _message(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message) if crash is not None else ""


def _kept(arguments: Sequence[str], files: Sequence[str]) -> list[str]:
    """Of a command line, what one test needs: no files, no other workers, no reports, nothing of ours.

    >>> _kept(["tests", "-n", "4", "--device=cpu", "--torchsleuth", "--junitxml=a.xml"], ["tests"])
    ['--device=cpu']
    """
    kept: list[str] = []
    skip = False
    for word in map(str, arguments):
        if skip or word in files or word.startswith(_LEFT_OUT) or word in _TAKES_VALUE:
            skip = not skip and word in _TAKES_VALUE
            continue
        kept.append(word)
    return kept


def section_of(case: Mapping[str, Any]) -> str:
    """What a test report says about a case: whose fault, which line, what works, and the script itself."""
    from torchsleuth.core.cases.door import text_inside
    from torchsleuth.core.cases.scrub import hidden, printable

    triage, verified = case.get("triage") or {}, case.get("verified") or {}
    folder = Path(case["path"])
    lines = [f"case {case['id']}: {case['kind']}: {case['signature']['summary']}"]
    if triage.get("user_line"):
        lines.append(f"your line  {triage['user_line']}: {triage.get('code') or ''}".rstrip(": "))
    if triage.get("component"):
        lines.append(f"at fault   {triage['component']}{', ' + triage['part'] if triage.get('part') else ''}")
    works = next((each for each in case.get("workarounds") or () if each["verified"]), None)
    if works is not None:
        lines.append(f"works      {works['name']}: {'; '.join(works['how'].splitlines())}")
    times = (
        f", fails the same way in {verified['reproduced']} of {verified['times']}"
        if verified.get("reproduced")
        else ""
    )
    for name in ("repro.py", "original.py"):
        with contextlib.suppress(ValueError):
            text = text_inside(folder, name)
            lines.append(f"repro      {folder / name}{times}")
            shown = text.splitlines() if name == "repro.py" else []
            more = [f"… {len(shown) - MOST_LINES} more lines"] if len(shown) > MOST_LINES else []
            lines += [f"    {line}" for line in [*shown[:MOST_LINES], *more]]
            break
    else:
        lines.append(f"repro      none: {case.get('no_repro') or 'no script was written'}")
    return "\n".join(hidden(printable(line)) for line in lines)
