"""When triage is asked again, and what is kept of the time for what comes after a step."""

import contextlib

import pytest

from made import make
from torchsleuth.core.cases.folder import update_case, write_case
from torchsleuth.core.cases.model import Minified, Triage, Workaround
from torchsleuth.front.supervise import road, whole_program
from torchsleuth.front.supervise.case_at_work import CaseAtWork, Processes
from torchsleuth.front.supervise.host import HostLost
from torchsleuth.front.supervise.program_runs import Program, ProgramRun, Recorded, Watch

PINNED = Triage(
    component="inductor", part="lowering", pinned=True, nodes=("sin",), user_line="m.py:9", seconds=2.0
)
NOT_NARROWED = Triage(
    component="inductor", pinned=False, nodes=tuple("abcdefg"), not_narrowed="7 lines are left", seconds=70.0
)


@pytest.fixture
def triage_says(monkeypatch):
    """Triage that answers as told; how often it was asked is in the list."""
    asked = []

    def says(answer):
        def step(case, *_, **__):
            asked.append(case)
            case.write(triage=answer)

        monkeypatch.setattr(road, "blame", step)
        return asked

    return says


def case_in(cases_dir, **sections):
    return CaseAtWork(write_case(cases_dir, make(**sections), {}), Processes(), 60.0)


def blamed(tmp_path, before, calls=1):
    case = case_in(tmp_path / "cases", triage=before, minified=Minified(calls=calls))
    road.blame_the_smallest(case, 60.0)
    return case.case.triage


@pytest.mark.parametrize("before", [None, Triage(error="the time was up"), NOT_NARROWED])
def test_a_triage_without_a_part_or_a_line_is_asked_again_of_the_smallest_graph(
    tmp_path, triage_says, before
):
    asked = triage_says(PINNED)
    found = blamed(tmp_path, before)
    assert len(asked) == 1
    assert (found.part, found.user_line) == ("lowering", "m.py:9")
    assert found.seconds == 2.0 + ((before and before.seconds) or 0.0)


def test_what_fewer_calls_cannot_tell_is_not_asked_again(tmp_path, triage_says):
    asked = triage_says(PINNED)
    assert blamed(tmp_path, Triage(component="program")).component == "program"
    assert blamed(tmp_path / "same", NOT_NARROWED, calls=7).nodes == NOT_NARROWED.nodes
    assert not asked


def test_where_the_smallest_graph_tells_nothing_what_was_known_stays(tmp_path, triage_says):
    triage_says(Triage(error="it does not fail once more"))
    assert blamed(tmp_path, NOT_NARROWED) == NOT_NARROWED


def test_time_is_kept_for_workarounds_and_for_a_triage_that_is_still_to_come(tmp_path):
    known, unknown = case_in(tmp_path / "known", triage=PINNED), case_in(tmp_path / "unknown", triage=None)
    kept = [road._kept_for_later(road.shrink, each, 200.0) for each in (known, unknown)]
    assert kept == [pytest.approx(40.0), pytest.approx(70.0)]
    assert road._kept_for_later(road.blame_the_smallest, unknown, 200.0) == pytest.approx(40.0)


def test_a_case_whose_road_ends_in_a_mistake_of_ours_is_told_and_the_others_go_on(tmp_path, monkeypatch):
    cases = [(write_case(tmp_path / name, make(), {}), None) for name in "ab"]

    @contextlib.contextmanager
    def recorded(*_, **__):
        yield Recorded(ProgramRun(1, 2.0), None, cases)

    def investigate(folder, *_):
        if folder.path == cases[0][0].path:
            raise KeyError("b")
        yield update_case(folder, triage=PINNED)

    monkeypatch.setattr(whole_program, "recorded", recorded)
    monkeypatch.setattr(whole_program, "investigate", investigate)
    said, finished = [], []
    run = whole_program.run_and_investigate(
        Program(("python", "a.py")),
        watch=Watch(),
        timeout=60,
        budget=60,
        cases_dir=tmp_path,
        finished=finished.append,
        say=said.append,
    )
    assert said == ["a case was not investigated to its end: a bug in torchsleuth, KeyError: 'b'"]
    assert [bool(case["triage"]) for case in run.cases] == [False, True]
    assert len(finished) == 2


def test_a_host_that_is_lost_leaves_what_was_found_to_help(tmp_path, monkeypatch):
    found = (Workaround("setting x", "x = 1", True),)

    def dies(work, *_):
        work.write(workarounds=found)
        raise HostLost("the search host died")

    monkeypatch.setattr(road, "find_workarounds", dies)
    work = case_in(tmp_path / "cases")
    road.cure(work, 60.0)
    assert work.case.workarounds == found
