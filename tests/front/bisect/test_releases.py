"""The search with a made-up provider and runner: what it tries, tells, keeps and gives back when stopped."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from made import make
from torchsleuth.core.cases.folder import update_case, write_case
from torchsleuth.core.cases.releases import bisection_of, newest_working, range_of
from torchsleuth.core.criteria import Answer
from torchsleuth.front.bisect.environments import CannotBuild, NoNetwork, Stopped
from torchsleuth.front.bisect.releases import (
    Offer,
    RepeatedScript,
    Search,
    bisect_releases,
    may_be_tried,
    plan_of,
    so_far,
    tried_before,
)
from torchsleuth.front.supervise.scripts import ScriptRun

VERSIONS = ["2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.14.0", "2.14.1", "2.15.0"]


def script_run(answer):
    return ScriptRun(answer, "it said so", 0.25)


@dataclass
class Made:
    """Provider and runner in one: the Python of a release is its name, and `history` says what the script does."""

    history: dict[str, str]
    installed: str | None = None
    refused: dict[str, str] = field(default_factory=dict)
    broken: dict[str, Exception] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)
    ended: bool = False
    build_seconds: float = 60.0
    time_over: Callable[[], None] = lambda: None

    def versions(self, wanted):
        return wanted.chosen_of(self.history)

    def offer(self, version):
        return Offer(version == self.installed, bytes=1000, refused=self.refused.get(version))

    def python_for(self, version, deadline):
        self.asked.append(version)
        if version in self.broken:
            raise self.broken[version]
        return version

    def stop(self):
        self.stopped.set()

    def run(self, python, deadline):
        answer = self.history[python]
        if answer == "slow":
            assert self.stopped.wait(250)
        if answer == "late":
            self.time_over()
        if answer == "interrupt":
            raise KeyboardInterrupt
        return script_run({"f": Answer.FAILS, "p": Answer.PASSES}.get(answer, answer))

    def end(self):
        self.ended = True


def made(letters, **more):
    return Made(dict(zip(VERSIONS, letters)), **more)


def search_of(made, **more):
    return Search(VERSIONS, made, made, time.monotonic() + 250, **more)


def test_the_release_that_brought_the_failure_is_found_with_few_builds():
    world = made("pppffff", installed="2.13.0")
    told = []
    result = bisect_releases(search_of(world, on_tried=told.append))
    assert (result.answer, result.version, result.changes[0].before) == ("broken since", "2.13.0", "2.12.1")
    assert len(world.asked) == len(set(world.asked)) <= 5
    assert sorted(told, key=lambda t: t.version) == sorted(result.tried, key=lambda t: t.version)
    assert newest_working(result) == "2.12.1"


def test_what_cannot_be_built_or_fails_differently_is_kept_with_its_reason():
    world = made(["p", "p", "p", Answer.OTHER, "f", "f", "f"], refused={"2.15.0": "no wheel"})
    world.broken["2.14.0"] = CannotBuild("it could not be installed")
    result = bisect_releases(search_of(world, workers=1))
    tried = {t.version: (t.outcome, t.why) for t in result.tried}
    assert (result.answer, result.version) == ("broken since", "2.14.1")
    assert result.changes[0].untested == ("2.13.0", "2.14.0") and result.changes[0].before == "2.12.1"
    assert tried["2.13.0"] == ("fails differently", "it said so")
    assert tried["2.14.0"] == ("not built", "it could not be installed")
    assert tried["2.15.0"] == ("not built", "no wheel") and "2.15.0" not in world.asked


def test_a_failure_in_every_release_is_always_and_in_none_is_never():
    always, never = (bisect_releases(search_of(made(letter * 7))) for letter in "fp")
    assert (always.answer, never.answer) == ("always", "never")
    assert newest_working(always) is None and newest_working(never) == "2.15.0"


def test_nothing_testable_is_unclear():
    result = bisect_releases(search_of(made([Answer.CANNOT_TELL] * 7)))
    assert result.answer == "unclear" and [t.outcome for t in result.tried] == ["cannot tell"] * 7
    refused = bisect_releases(search_of(made("f" * 7, refused=dict.fromkeys(VERSIONS, "no wheel"))))
    assert refused.answer == "unclear" and {t.outcome for t in refused.tried} == {"not built"}


def test_the_end_of_the_budget_is_no_hang_and_leaves_what_is_known():
    world = made(["p", "f", "f", "late", "f", "f", "f"])
    search = search_of(world, workers=1)
    world.time_over = lambda: setattr(search, "deadline", 0.0)
    result = bisect_releases(search)
    assert result.answer == "unclear" and "time was over" in result.error
    assert "2.13.0" not in [t.version for t in result.tried]
    assert "not tried between: 2.12.0, 2.12.1, 2.13.0, 2.14.0, 2.14.1" in result.notes[0]


def test_an_error_that_no_release_survives_ends_the_search_and_the_other_runs():
    world = made(["slow", "f", "f", "f", "f", "f", "f"])
    world.broken["2.15.0"] = NoNetwork("the index does not answer")
    search = search_of(world)
    with pytest.raises(NoNetwork):
        bisect_releases(search)
    assert world.stopped.is_set() and world.ended and "2.11.0" not in search.tried


def test_an_interrupted_search_goes_on_where_it_was(tmp_path):
    world = made(["p", "f", "f", "interrupt", "f", "f", "f"])
    first = search_of(world, workers=1)
    with pytest.raises(KeyboardInterrupt):
        bisect_releases(first)
    kept = so_far(first, "stopped")
    assert kept.answer == "unclear" and [t.version for t in kept.tried] == ["2.11.0", "2.15.0"]

    folder = write_case(tmp_path, make(), {})
    section = {**kept.to_json(), "of": "key"}
    folder = update_case(folder, extra={**folder.case.extra, "bisect": section})
    again = made("pffffff")
    second = search_of(again, workers=1, tried=tried_before(bisection_of(folder.case), "key", VERSIONS))
    assert may_be_tried(second) == VERSIONS[1:-1]
    assert bisect_releases(second).version == "2.12.0"
    assert may_be_tried(second) == [] and may_be_tried(search_of(again)) == VERSIONS
    assert not {"2.11.0", "2.15.0"} & set(again.asked)
    assert tried_before(bisection_of(folder.case), "another script", VERSIONS) == {}


def test_a_section_from_a_stranger_that_makes_no_sense_is_not_read():
    for section in (
        None,
        [],
        {"answer": 3},
        {"answer": "always", "version": None, "tried": [{"version": 1}]},
    ):
        assert bisection_of(make(extra={"bisect": section})) is None
    odd = {
        "answer": "never",
        "version": None,
        "tried": [{"version": "x", "outcome": "passes", "seconds": 1, "why": ""}],
    }
    assert newest_working(bisection_of(make(extra={"bisect": odd}))) is None


def test_a_build_stopped_by_the_clock_is_no_refusal():
    world = made("f" * 7)
    world.broken["2.11.0"] = Stopped()
    result = bisect_releases(search_of(world))
    assert result.answer == "unclear" and "2.11.0" not in [t.version for t in result.tried]


def test_a_flaky_failure_passes_only_where_it_passes_every_time():
    answers = iter([Answer.PASSES, Answer.FAILS, Answer.PASSES])
    runner = RepeatedScript(lambda _python, _deadline: script_run(next(answers)), threading.Event(), 3)
    assert runner.run("python", 0).answer is Answer.FAILS and next(answers) is Answer.PASSES


def test_the_plan_counts_what_is_not_at_hand():
    world = made("f" * 7, installed="2.13.0", refused={"2.11.0": "no wheel"})
    plan = plan_of(VERSIONS, world, 2)
    assert (plan.count, plan.most, plan.bytes, plan.all_bytes) == (5, 5, 5000, 5000)
    assert plan_of(VERSIONS, world, 1).most == 5
    assert world.versions(range_of("2.12..2.13")) == ["2.12.0", "2.12.1", "2.13.0"] and not world.asked
