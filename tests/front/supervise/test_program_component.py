"""The component of a whole program, with runs that are made up: which variants are run, and whom they blame."""

import pytest

from torchsleuth.core import change_table
from torchsleuth.core.changes import Change
from torchsleuth.core.criteria import Answer, answer_of_run
from torchsleuth.front.supervise import program_blame as program
from torchsleuth.front.supervise.program_blame import (
    component_by_runs,
    component_of_program,
    program_named,
)
from torchsleuth.front.supervise.program_runs import ProgramRun
from torchsleuth.torch_core.backends.catalog import CATALOG

DECOMPOSED = "sleuth_aot_eager_decomp_partition"
BAD = ProgramRun(1, 1.0, tail="Traceback\nAssertionError: differ\n")
GOOD = ProgramRun(0, 1.0)


def climbed(monkeypatch, fails, first=BAD, **answers):
    """The finding, and what was changed in each run; `fails(change)` says how a run ends."""
    seen = []

    def run(_program, change, *, watch=None, timeout=None, cases_dir=None):
        if watch is not None:
            return first
        what = change.backend or next(iter(change.config.get("torch._inductor.config", {})), None)
        seen.append(what or "uncompiled")
        outcome = fails(change)
        return outcome if isinstance(outcome, ProgramRun) else BAD if outcome else GOOD

    monkeypatch.setattr(program, "run_program", run)
    return component_of_program(["train.py"], **answers), seen


def level(name):
    order = ["uncompiled", "sleuth_eager", "sleuth_aot_eager", DECOMPOSED]

    def fails(change):
        backend = "uncompiled" if change.uncompiled else change.backend
        return backend not in order or order.index(backend) >= order.index(name)

    return fails


@pytest.mark.parametrize(
    ("failing", "component"),
    [
        ("uncompiled", "program"),
        ("sleuth_eager", "dynamo"),
        ("sleuth_aot_eager", "aot_autograd"),
        (DECOMPOSED, "decompositions"),
    ],
)
def test_the_first_rung_that_fails_names_the_component(monkeypatch, failing, component):
    found, _ = climbed(monkeypatch, level(failing))
    assert found.triage.component == component and found.triage.pinned


def test_a_program_that_does_not_fail_blames_nobody(monkeypatch):
    found, seen = climbed(monkeypatch, lambda *_: True, first=GOOD)
    assert found.triage.component is None and not found.triage.pinned and seen == []


def test_rungs_below_one_that_passes_are_not_run(monkeypatch):
    case = {"id": "1a2b3c4d", "kind": "compile_error", "phase": "compile", "backend": "inductor"}
    first = ProgramRun(1, 1.0, tail="RuntimeError: no", cases=(case,))
    found, seen = climbed(monkeypatch, lambda *_: False, first=first)
    assert found.triage.component == "inductor" and found.case == "1a2b3c4d"
    assert seen == ["uncompiled", DECOMPOSED]


def test_only_the_users_own_backend_fails(monkeypatch):
    case = {"id": "1a2b3c4d", "kind": "compile_error", "phase": "compile", "backend": "mine"}
    found, _ = climbed(monkeypatch, lambda *_: False, first=ProgramRun(1, 1.0, cases=(case,)))
    assert (found.triage.component, found.triage.part) == ("backend", "mine")


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ("fallback_random", "random numbers"),
        ("emulate_precision_casts", "precision casts"),
        ("max_fusion_size", "fusion"),
        ("deterministic", "determinism"),
    ],
)
def test_wrong_numbers_are_put_to_the_setting_that_cures_them(monkeypatch, setting, part):
    def fails(change):
        inductor = change.config.get("torch._inductor.config", {})
        return not change.uncompiled and change.backend is None and setting not in inductor

    found, _ = climbed(monkeypatch, fails)
    assert (found.triage.component, found.triage.part) == ("inductor", part)
    assert found.triage.flags[0].startswith(f"torch._inductor.config.{setting} = ")


@pytest.mark.parametrize(
    ("answers_with_cache", "part", "detail"),
    [(BAD, "compile cache", "passes with an empty compile cache"), (GOOD, None, "it fails at times")],
)
def test_a_failure_that_goes_with_an_empty_compile_cache(monkeypatch, answers_with_cache, part, detail):
    def run(_program, change, *, watch=None, timeout=None):
        return answers_with_cache if change.own_cache else GOOD

    monkeypatch.setattr(program, "run_program", run)
    found = component_by_runs(program_named(["train.py"]), BAD, GOOD, lambda text: None, 60)
    assert found.part == part and found.component == ("inductor" if part else None)
    assert detail in found.detail and found.pinned == (part is not None)


def test_decompositions_that_only_draw_other_random_numbers_are_not_blamed(monkeypatch):
    def fails(change):
        return change.backend == DECOMPOSED and not change.config

    assert climbed(monkeypatch, fails)[0].triage.part == "random numbers"


def test_a_fake_kernel_that_does_not_match_is_found_by_the_check(monkeypatch):
    told = ProgramRun(1, 1.0, tail="FakeMismatch: mylib.op (fake kernel): sizes differ\n")

    def fails(change):
        return told if (change.backend or "").endswith("crossref") else False

    found, _ = climbed(monkeypatch, fails)
    assert (found.triage.component, found.triage.part) == ("aot_autograd", "fake kernel")
    assert "mylib.op" in found.triage.detail


def test_a_rung_that_fails_in_another_way_is_no_evidence(monkeypatch):
    def fails(change):
        return ProgramRun(1, 1.0, tail="ImportError: no") if change.backend == "sleuth_eager" else False

    assert climbed(monkeypatch, fails)[0].triage.component == "inductor"


def test_each_rung_is_told_when_it_begins_and_when_it_ends(monkeypatch):
    said = []
    found, _ = climbed(monkeypatch, level("uncompiled"), say=said.append)
    assert said == [
        "trying: the program as it is",
        "the program as it is: fails, status 1 (1 s)",
        "trying: nothing compiled",
        "nothing compiled: fails, status 1 (1 s)",
    ]
    assert [(r.what, r.answer) for r in found.triage.rungs] == [
        ("the program as it is", "fails"),
        ("nothing compiled", "fails"),
    ]
    assert found.triage.component == "program"


LATE = ProgramRun(143, 9.0, timed_out=True)


@pytest.mark.parametrize(
    ("first", "run", "answer"),
    [
        (BAD, ProgramRun(1, 2.0, tail="my.AssertionError: other text"), Answer.FAILS),
        (BAD, ProgramRun(1, 2.0, tail="ValueError: differ"), Answer.OTHER),
        (BAD, ProgramRun(139, 2.0), Answer.OTHER),
        (BAD, LATE, Answer.OTHER),
        (LATE, LATE, Answer.FAILS),
        (LATE, BAD, Answer.OTHER),
        (LATE, GOOD, Answer.PASSES),
    ],
)
def test_two_runs_end_alike_by_status_and_type_of_error(first, run, answer):
    assert answer_of_run(first, run) is answer


def test_the_backends_of_the_table_are_there():
    rows = (each for each in vars(change_table).values() if isinstance(each, Change))
    named = {each.backend for each in rows} - {None}
    assert len(named) == 5 and named <= {each.name for each in CATALOG}


def test_our_own_lines_are_not_the_programs_last_word():
    said = "ValueError: bad\ntorchsleuth: case 1a2b3c4d: compile_error\n"
    assert ProgramRun(1, 1.0, tail=said).last_word == "ValueError"
    assert ProgramRun(1, 1.0, tail="some text\n  indented: x\n").last_word == ""


def test_a_script_is_run_by_this_python_and_a_command_as_it_is():
    assert program_named(["train.py", "--x"]).command[1:] == ("train.py", "--x")
    assert program_named(["torchrun", "train.py"]).command == ("torchrun", "train.py")
