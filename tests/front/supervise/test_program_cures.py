"""What only the whole program can try: the functions around a fault, the innermost first; and who fails uncompiled."""

import sys
import time
from dataclasses import replace

import pytest

from made import make
from torchsleuth.core.cases.folder import update_case, write_case
from torchsleuth.core.cases.model import Triage, Workaround
from torchsleuth.core.change_table import kept_eager
from torchsleuth.core.protocol.codec import plain
from torchsleuth.front.supervise import program_cures
from torchsleuth.front.supervise.case_at_work import CaseAtWork, Processes
from torchsleuth.front.supervise.program_blame import check_blame_of_program
from torchsleuth.front.supervise.program_cures import (
    changes_of_program,
    gives_up,
    try_found_on_program,
    try_on_program,
)
from torchsleuth.front.supervise.program_runs import ProgramRun
from torchsleuth.script_runtime.signature import Signature

MODEL = """class Net:
    def forward(self, x):
        return inner(x)


def inner(x):
    return x + 1
"""


@pytest.fixture
def capture_case(tmp_path):
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    frames = [[str(file), 3, "forward"], [str(file), 7, "inner"]]
    program = {"command": [sys.executable, str(file)], "cwd": str(tmp_path)}
    case = make(
        kind="capture_error",
        phase="capture",
        graph=None,
        triage=Triage(component="dynamo", part="capture"),
        extra={"frames": frames, "program": program},
    )
    return write_case(tmp_path / "cases", case, {})


def test_functions_are_tried_from_the_innermost_outwards_and_then_errors_are_passed_over(capture_case):
    found = list(changes_of_program(capture_case))
    assert [each.name for each in found] == [
        "function inner eager",
        "function Net.forward eager",
        "setting suppress_errors",
    ]
    assert found[0].how == "@torch.compiler.disable  # above `def inner` in model.py:6"
    assert "graph break" in found[0].disables


def test_of_a_library_the_innermost_functions_are_left_eager_before_those_of_the_program(capture_case):
    library = "/usr/lib/python3/site-packages/metrics/utilities.py"
    torchs = "/usr/lib/python3/site-packages/torch/nn/modules/module.py"
    calls = [
        [torchs, 9, "_call_impl"],
        [library, 30, "update"],
        [library, 12, "format"],
        [library, 5, "version"],
    ]
    frames = [*capture_case.case.extra["frames"], *calls]
    with_library = update_case(capture_case, extra={**capture_case.case.extra, "frames": frames})
    found = [each.how for each in changes_of_program(with_library)]
    of_library = "metrics.utilities.{0} = torch.compiler.disable(metrics.utilities.{0})"
    assert found[:2] == [of_library.format("version"), of_library.format("format")]
    assert "above `def inner`" in found[2] and not any("_call_impl" in each for each in found)


def test_a_setting_that_torch_advises_is_tried_first_and_one_it_only_tells_of_is_not(capture_case):
    hints = (
        "Explanation: no numpy with torch._dynamo.config.trace_numpy=False\n"
        "  Hint: Set torch._dynamo.config.allow_rnn=True to enable experimental support\n"
    )
    told = update_case(capture_case, {"traceback.txt": hints})
    found = list(changes_of_program(told))
    assert found[0].how == "torch._dynamo.config.allow_rnn = True"
    assert found[0].config == {"torch._dynamo.config": {"allow_rnn": "True"}}
    assert not any("trace_numpy" in change.how for change in found)


def test_what_torch_says_of_functions_it_cannot_look_into_is_tried(capture_case):
    printed = (
        "Hint: If you are attempting to call a logging function (e.g. `_warnings.warn`), you can try adding it to "
        "`torch._dynamo.config.reorderable_logging_functions`.\n"
    )
    in_c = (
        "Developer debug context: module: my.scaling, qualname: twice, skip reason: "
        "cannot determine source file for my.scaling (likely a C extension or builtin)\n"
    )
    told = update_case(capture_case, {"traceback.txt": printed + in_c})
    prints, allowed, *_ = changes_of_program(told)
    warn = "torch._dynamo.config.reorderable_logging_functions.add(warnings.warn)"
    assert prints.how == f"import warnings\n{warn}" == prints.snippet
    assert allowed.how == "import my.scaling\ntorch.compiler.allow_in_graph(my.scaling.twice)"


def test_a_line_is_rewritten_before_anything_is_left_out(capture_case, tmp_path):
    text = MODEL.replace("return x + 1", "return x if x.sum() > 0 else -x")
    (tmp_path / "model.py").write_text("import torch\n" + text)
    frames = [[file, line + 1, name] for file, line, name in capture_case.case.extra["frames"]]
    whole = update_case(capture_case, extra={**capture_case.case.extra, "frames": frames, "fullgraph": True})
    first, second, third, *_ = changes_of_program(whole)
    assert first.how.splitlines() == [
        "# model.py:8, in place of",
        "#     return x if x.sum() > 0 else -x",
        "return torch.where(x.sum() > 0, x, -x)",
    ]
    assert first.rewritten[0][1:3] == (8, 8)
    assert second.name == "function inner traced as a whole"
    assert third.name == "fullgraph=False"


def test_the_first_with_which_the_program_passes_ends_the_search_and_comes_first(capture_case, monkeypatch):
    asked = []

    def run(_program, change, **_):
        asked.append(change)
        return ProgramRun(0 if "forward" in str(change.functions) else 1, 0.1)

    monkeypatch.setattr(program_cures, "run_program", run)
    case = CaseAtWork(capture_case, Processes(), time.monotonic() + 60)
    try_on_program(case)
    first, other = case.case.workarounds
    assert (first.name, first.verified, first.program) == ("function Net.forward eager", True, True)
    assert (other.name, other.verified) == ("function inner eager", False) and "status 1" in other.error
    assert len(asked) == 2


def test_another_backend_is_giving_up():
    eager = Workaround("backend eager", "torch.compile(model, backend='eager')", True)
    assert gives_up(()) and gives_up([eager]) and gives_up([eager, Workaround("a", "a", False)])
    assert not gives_up([eager, Workaround("setting x", "x = 1", True)])


@pytest.mark.parametrize(("status", "component"), [(0, "dynamo"), (1, "program")])
def test_a_program_is_at_fault_only_if_it_fails_when_nothing_is_compiled(capture_case, status, component):
    command = [sys.executable, "-c", f"raise SystemExit({status})"]
    blamed = Triage(component="program", part="operator", detail="it fails without the compiler, too")
    extra = {"program": {**capture_case.case.extra["program"], "command": command}}
    folder = replace(capture_case, case=replace(capture_case.case, triage=blamed, extra=extra))
    case = CaseAtWork(folder, Processes(), time.monotonic() + 60)
    check_blame_of_program(case, 60)
    found = case.case.triage
    assert found.component == component
    assert ("passes when nothing is compiled" in found.detail) is (component == "dynamo")


KEPT_EAGER = kept_eager(["aten.sin.default"])
OTHER = Signature("crash", "run")
SAME_AS_BEFORE = "the program fails as before"


@pytest.mark.parametrize(
    ("seen", "status", "program", "error"),
    [
        ((), 0, True, None),
        (None, 1, False, SAME_AS_BEFORE),
        ((OTHER,), 1, None, None),  # another of its failures, of which this workaround says nothing
        ((), 1, False, "the program ends with status 1"),
    ],
)
def test_lines_to_paste_are_run_as_they_are_printed_beside_the_cache_that_the_program_has(
    capture_case, monkeypatch, seen, status, program, error
):
    asked = []

    def run(_program, change, **_):
        asked.append(change)
        signatures = (capture_case.case.signature,) if seen is None else seen
        return ProgramRun(status, 0.1, cases=tuple({"signature": plain(each)} for each in signatures))

    monkeypatch.setattr(program_cures, "run_program", run)
    work = CaseAtWork(capture_case, Processes(), time.monotonic() + 60)
    work.write(workarounds=(Workaround.of(KEPT_EAGER, None),))
    try_found_on_program(work, [KEPT_EAGER])
    (tried,) = work.case.workarounds
    assert (tried.program, tried.error) == (program, error)
    (change,) = asked
    assert (change.snippet, change.own_cache, change.off) == (tried.how, True, {})


def test_what_the_program_refused_helps_nobody():
    assert gives_up([Workaround("setting x", "x = 1", True, program=False)])
