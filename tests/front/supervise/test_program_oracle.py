"""The program as the oracle, with runs that are made up: what is run, whom that blames, and what is run only once."""

import time

import pytest

from made import make
from torchsleuth.front.supervise import program_blame
from torchsleuth.front.supervise.program_blame import KnownRuns, ask_program, compile_cache
from torchsleuth.front.supervise.program_runs import Program, ProgramRun

GOOD = ProgramRun(0, 1.0)


@pytest.fixture
def asked(monkeypatch):
    """Asks the program of a case whose runs fail as `fails(change)` says; also what was run."""
    ran = []

    def ask(case, fails, runs=None):
        bad = ProgramRun(1, 1.0, cases=({"signature": case.signature.to_json()},))

        def run(_program, change, *, watch=None, timeout=None):
            ran.append("own cache" if change.own_cache else change.backend or str(change.to_json()))
            return bad if fails(change) else GOOD

        monkeypatch.setattr(program_blame, "run_program", run)
        program, until = Program(("python", "train.py"), "/"), time.monotonic() + 60
        return ask_program(case, program, until, lambda text: None, KnownRuns() if runs is None else runs)

    return ask, ran


def test_code_in_the_compile_cache_is_blamed_where_an_empty_one_helps_and_the_full_one_does_not(
    asked, monkeypatch
):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/scratch/kernels")
    found = asked[0](make(kind="accuracy"), lambda change: change.own_cache)
    assert (found.triage.component, found.triage.part) == ("inductor", "compile cache")
    assert found.triage.pinned and "/scratch/kernels" in found.triage.detail
    best = found.workarounds[0]
    assert best.name == "an empty compile cache" and best.verified and best.program
    compile(best.how, "pasted", "exec")
    assert "/scratch/kernels-new" in best.how


def test_a_program_that_fails_at_times_blames_nobody_and_nothing_is_called_a_workaround(asked):
    found = asked[0](make(), lambda change: False)
    assert found.triage.component is None and not found.triage.pinned
    assert "it fails at times" in found.triage.detail and found.workarounds == ()


def test_what_was_run_for_one_case_is_not_run_again_for_the_next(asked):
    ask, ran = asked
    runs = KnownRuns()

    def fails(change):
        return change.backend is None and change.dynamic is not False

    first = ask(make(), fails, runs)
    before = len(ran)
    second = ask(make("2b3c4d5e"), fails, runs)
    assert len(ran) == before > 2
    assert second.triage.part == first.triage.part == "dynamic shapes"
    ask(make("3c4d5e6f", kind="hang"), fails, runs)  # which is watched in another way
    assert len(ran) > before


def test_a_user_without_a_name_has_a_compile_cache_as_well(monkeypatch):
    def nameless():
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr("getpass.getuser", nameless)
    assert compile_cache().name.startswith("torchinductor_")


def test_a_backend_is_offered_only_where_the_program_passes_with_it_as_it_is_pasted(asked):
    def fails(change):
        return not (change.backend or "").startswith("sleuth_")

    found = asked[0](make(), fails)
    assert found.triage.component == "inductor"
    assert found.workarounds == ()
    found = asked[0](make(), lambda change: change.backend is None)
    assert [each.how for each in found.workarounds] == [
        'torch.compile(model, backend="aot_eager_decomp_partition")'
    ]


def test_what_a_whole_program_passed_with_is_run_as_the_lines_that_are_pasted(asked):
    ask, _ = asked

    def fails(change):  # a setting in force everywhere helps; the line at the top is overruled by the program
        return change.backend is None and "fallback_random" not in str(change.config)

    assert not [each for each in ask(make(kind="accuracy"), fails).workarounds if "random" in each.how]
