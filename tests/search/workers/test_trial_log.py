"""The log survives being cut off anywhere and keeps only what would come out the same again."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from torchsleuth.core.protocol.trials import Outcome
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.workers.failure_rate import repeats_for
from torchsleuth.search.workers.trial_log import TrialLog, is_answer, surroundings

EXPECTED = Signature("compile_error", "compile", ("KeyError",), "no lowering")
FAILED = Outcome(EXPECTED, 0.5, text="Traceback")
PASSED = Outcome(None, 0.25)


@given(cut=st.integers(0, 2000), rest=st.binary(max_size=40))
@settings(max_examples=60, deadline=None)
def test_a_log_cut_off_anywhere_gives_the_whole_lines_and_takes_new_ones(cut, rest):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trials.jsonl")
        log = TrialLog(path, "here")
        for n in range(4):
            log.remember(f"key {n}", FAILED if n % 2 else PASSED, EXPECTED)
        whole = path.read_bytes()
        path.write_bytes(whole[:cut] + rest.replace(b"\n", b""))
        log = TrialLog(path, "here")
        # A line may be whole but for its line end.
        assert len(log) in (whole[:cut].count(b"\n"), whole[:cut].count(b"\n") + 1)
        log.remember("new", FAILED, EXPECTED)
        again = TrialLog(path, "here")
        assert again.answer("new") is not None and again.answer("new").fails_like(EXPECTED)
        assert len(again) == len(log)


def test_what_is_remembered_comes_back_equal_and_marked_as_remembered(tmp_path):
    TrialLog(tmp_path / "log", "here").remember("key", FAILED, EXPECTED)
    known = TrialLog(tmp_path / "log", "here").answer("key")
    assert (known.signature, known.seconds, known.text, known.cached) == (EXPECTED, 0.5, "Traceback", True)


def test_answers_of_another_torch_are_not_taken(tmp_path):
    TrialLog(tmp_path / "log", "torch 2.12").remember("key", FAILED, EXPECTED)
    assert TrialLog(tmp_path / "log", "torch 2.13").answer("key") is None


def test_a_pass_is_known_only_for_as_many_runs_as_were_seen():
    log = TrialLog()
    log.remember("key", PASSED, EXPECTED, runs=3)
    assert log.answer("key", 3) is not None
    assert log.answer("key", 4) is None


def test_only_what_would_come_out_the_same_again_is_an_answer():
    def crash(name: str) -> Outcome:
        return Outcome(Signature("crash", "run", signal=name), 1.0)

    hang = Outcome(Signature("hang", "run"), 30.0)
    assert is_answer(PASSED, EXPECTED) and is_answer(FAILED, EXPECTED)
    assert is_answer(crash("SIGSEGV"), EXPECTED) and is_answer(crash("exit 7"), EXPECTED)
    assert not is_answer(crash("SIGKILL"), EXPECTED) and not is_answer(crash("SIGTERM"), EXPECTED)
    assert is_answer(crash("SIGKILL"), crash("SIGKILL").signature)
    assert not is_answer(hang, EXPECTED) and is_answer(hang, hang.signature)
    assert not is_answer(Outcome(None, 1.0, error="no inputs"), EXPECTED)


def test_settings_in_the_environment_make_other_surroundings_and_places_do_not():
    plain = surroundings({})
    assert surroundings({"TORCHINDUCTOR_MAX_AUTOTUNE": "1"}) != plain
    assert surroundings({"TORCHINDUCTOR_CACHE_DIR": "a", "LANG": "C", "TORCHSLEUTH_CASES": "b"}) == plain


@given(rate=st.floats(0.1, 0.985))
def test_enough_passes_are_asked_for_and_not_one_more(rate):
    needed = repeats_for(rate)
    assert (1 - rate) ** needed < 0.01
    assert needed == 1 or (1 - rate) ** (needed - 1) >= 0.01 - 1e-12
