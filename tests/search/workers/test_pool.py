"""Answers are remembered, passes of flaky failures repeated, trials run side by side."""

from __future__ import annotations

import json
from concurrent.futures import FIRST_COMPLETED, wait

import pytest

from faulty import FAILS, counting, faulty_workers, trial
from torchsleuth.core.processes.limits import Limits
from torchsleuth.search.workers.failure_rate import failure_rate


def test_an_answer_is_given_once_and_then_remembered(tmp_path):
    asked = counting(tmp_path / "runs", 1)
    with faulty_workers(folder=tmp_path / "search") as workers:
        first, second = workers.run(asked), workers.run(asked)
    assert first.fails_like(FAILS) and not first.cached
    assert second.fails_like(FAILS) and second.cached
    assert (tmp_path / "runs").read_text() == "x"


def test_a_later_search_in_the_same_folder_goes_on_where_the_first_stopped(tmp_path):
    asked = counting(tmp_path / "runs", 1)
    for _ in range(2):
        with faulty_workers(folder=tmp_path / "search") as workers:
            outcome = workers.run(asked)
    assert outcome.cached and outcome.fails_like(FAILS)
    assert (tmp_path / "runs").read_text() == "x"


def test_fresh_asks_anew_whatever_is_remembered(tmp_path):
    asked = counting(tmp_path / "runs", 2)
    with faulty_workers(folder=tmp_path / "search") as workers:
        assert workers.run(asked).signature is None
        assert workers.run(asked, fresh=True).fails_like(FAILS)


def test_a_time_out_is_asked_again_but_the_hang_looked_for_is_remembered(tmp_path):
    other = trial("sleep 30")
    hang = trial("sleep 30", expected=trial("x").expected.__class__("hang", "run"))
    with faulty_workers(folder=tmp_path / "search", limits=Limits(run=0.3)) as workers:
        for asked, remembered in ((other, False), (hang, True)):
            assert workers.run(asked).signature.kind == "hang"
            assert workers.run(asked).cached is remembered
        # It says nothing about a longer clock.
        assert not workers.run(hang, limits=Limits(run=1.0)).cached


def test_a_pass_counts_only_after_as_many_repeats_as_asked_for(tmp_path):
    with faulty_workers(folder=tmp_path / "search", repeats=4) as workers:
        late = counting(tmp_path / "late", 3)
        assert workers.run(late).fails_like(FAILS)
        never = counting(tmp_path / "never", 9)
        assert workers.run(never).signature is None
        assert (tmp_path / "late").read_text() == "xxx"
        assert (tmp_path / "never").read_text() == "xxxx"
        # Four passes are no answer for who wants five.
        workers.repeats = 5
        workers.run(never)
    assert (tmp_path / "never").read_text() == "x" * 9


def test_the_failure_rate_of_a_flaky_trial_is_measured(tmp_path):
    with faulty_workers(2) as workers:
        assert failure_rate(workers, trial("fail")).repeats == 1
        assert not failure_rate(workers, trial("fail")).flaky
        never = failure_rate(workers, trial("pass"))
        assert (never.failures, never.runs, never.repeats) == (0, 3, 1)
        wrong = failure_rate(workers, trial("segv"))
        assert (wrong.failures, wrong.runs) == (0, 3)
        sometimes = failure_rate(workers, trial("sometimes"), k=20, more=20)
        assert sometimes.flaky and 3 <= sometimes.repeats <= 44


def test_trials_run_side_by_side_and_the_first_to_end_is_told_first():
    with faulty_workers(2) as workers:
        workers.run(trial("pass"))
        slow, fast = workers.submit(trial("sleep 1000")), workers.submit(trial("sleep 0.2"))
        assert wait([slow, fast], return_when=FIRST_COMPLETED).done == {fast}
        assert slow.cancel()


def test_many_trials_on_two_workers_all_get_their_own_answer():
    with faulty_workers(2) as workers:
        tickets = [workers.submit(trial(f"exit {n}")) for n in range(40)]
        assert [t.result().signature.signal for t in tickets] == [f"exit {n}" for n in range(40)]


def test_warm_processes_run_one_trial_after_the_other_until_one_crashes():
    with faulty_workers() as workers:
        pids = []
        for what in ("pass", "fail", "segv", "pass"):
            ticket = workers.submit(trial(what, inputs={"device": "cuda"}))
            outcome = ticket.result()
            assert outcome.error is None
            pids.append(ticket.pid)
        assert outcome.signature is None
    assert pids[0] == pids[1] == pids[2] != pids[3]


def test_a_warm_process_is_replaced_after_a_trial_with_definitions_of_its_own():
    from dataclasses import replace

    with faulty_workers() as workers:
        first = workers.submit(replace(trial("pass"), embedded="device = 'cuda'"))
        assert first.result().signature is None
        second = workers.submit(trial("fail", inputs={"device": "cuda"}))
        assert second.result().fails_like(FAILS)
        assert first.pid != second.pid


def test_a_warm_process_that_hangs_is_replaced():
    with faulty_workers() as workers:
        hung = workers.run(trial("native_hang", inputs={"device": "cuda"}), limits=Limits(run=0.4))
        assert hung.signature.kind == "hang"
        assert workers.run(trial("fail", inputs={"device": "cuda"})).fails_like(FAILS)


def test_closed_workers_say_so():
    workers = faulty_workers()
    ticket = workers.submit(trial("sleep 30"))
    workers.close()
    assert ticket.cancelled()
    with pytest.raises(RuntimeError, match="closed"):
        workers.submit(trial("pass"))


def test_the_log_is_one_json_document_per_line(tmp_path):
    with faulty_workers(2, folder=tmp_path) as workers:
        for ticket in [workers.submit(trial(f"exit {n}")) for n in range(5)]:
            ticket.result()
    lines = (tmp_path / "trials.jsonl").read_text().splitlines()
    assert len(lines) == 5
    assert {json.loads(line)["outcome"]["signature"]["signal"] for line in lines} == {
        f"exit {n}" for n in range(5)
    }
