"""The search for a change, over made-up histories: right answers, and no more runs than k-section needs."""

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given

from torchsleuth.core.criteria import Answer
from torchsleuth.front.bisect.releases import PATIENCE, finding_of, most_runs, next_to_try

FAILS, PASSES, UNTESTABLE = Answer.FAILS, Answer.PASSES, Answer.CANNOT_TELL


def search(history, workers=1, free=None):
    """Runs the search over a history given as letters: p passes, f fails, u cannot be tested."""
    words = {"p": PASSES, "f": FAILS, "u": UNTESTABLE}
    versions = [f"v{i}" for i in range(len(history))]
    truth = dict(zip(versions, (words[letter] for letter in history)))
    seen: dict[str, Answer] = {}
    while batch := next_to_try(versions, seen, workers, free):
        assert 0 < len(batch) <= workers and len(set(batch)) == len(batch)
        assert not seen.keys() & set(batch)
        seen.update({version: truth[version] for version in batch})
    return finding_of(versions, seen), seen


histories = st.text("pfu", min_size=1, max_size=40)
workers = st.integers(1, 6)


@given(
    st.integers(0, 60), st.integers(0, 60), workers, st.booleans(), st.one_of(st.none(), st.integers(0, 119))
)
def test_one_change_is_found_exactly_within_the_bound_of_k_section(before, after, k, breaks, free):
    history = ("p" * before + "f" * after) if breaks else ("f" * before + "p" * after)
    if not history:
        return
    found, seen = search(history, k, None if free is None else f"v{free % len(history)}")
    if before and after:
        assert (found.answer, found.version) == ("broken since" if breaks else "fixed in", f"v{before}")
        assert found.changes[-1].before == f"v{before - 1}" and not found.changes[-1].untested
    else:
        assert found.answer == ("always" if set(history) == {"f"} else "never") and found.version is None
    assert len(seen) <= most_runs(len(history), k) + (free is not None)


@given(st.integers(1, 30), st.integers(1, 30), st.sets(st.integers(0, 59)), workers)
def test_releases_that_cannot_be_tested_move_no_change(before, after, holes, k):
    letters = ["p"] * before + ["f"] * after
    history = "".join("u" if i in holes else letter for i, letter in enumerate(letters))
    found, seen = search(history, k)
    refusals = sum(answer is UNTESTABLE for answer in seen.values())
    assert len(seen) <= min(len(history), most_runs(len(history), k) * (1 + refusals))
    passing, failing = history.rfind("p"), history.find("f")
    if found.answer == "broken since":
        assert found.version == f"v{failing}" and found.changes == found.changes[-1:]
        assert found.changes[0].before == f"v{passing}"
        assert found.changes[0].untested == tuple(f"v{i}" for i in range(passing + 1, failing))
        told = any("could not be tested" in note or "failed differently" in note for note in found.notes)
        assert bool(found.changes[0].untested) == told
    elif "p" in history and "f" in history:
        # A side was given up after PATIENCE refusals, and that is told.
        assert any("not tried" in note for note in found.notes)
        assert refusals >= PATIENCE


@given(histories, workers)
def test_whatever_is_told_of_any_history_is_true_of_it(history, k):
    found, seen = search(history, k)
    tested = [i for i, letter in enumerate(history) if letter != "u"]
    for change in found.changes:
        at, before = int(change.version[1:]), int(change.before[1:])
        assert history[at] == ("f" if change.what == "broken since" else "p") != history[before] != "u"
        assert set(history[before + 1 : at]) <= {"u"}
    if found.changes:
        assert (found.answer, found.version) == (found.changes[-1].what, found.changes[-1].version)
        order = [int(change.version[1:]) for change in found.changes]
        assert order == sorted(order)
        alternating = itertools.pairwise(change.what for change in found.changes)
        assert all(a != b for a, b in alternating)
        assert (len(found.changes) > 1) == any("times" in note for note in found.notes)
    else:
        answers = {seen[f"v{i}"] for i in tested if f"v{i}" in seen}
        assert len(answers) <= 1
        assert (found.answer == "always") <= (answers == {FAILS})
        assert (found.answer == "never") <= (answers == {PASSES})
    assert bool(tested) or found.answer == "unclear"
    assert len(seen) <= len(history)


def test_a_failure_that_came_and_went_is_told_with_both_changes():
    found, _ = search("ppfffpp", free="v3")
    assert (found.answer, found.version) == ("fixed in", "v5")
    assert [(c.what, c.version) for c in found.changes] == [("broken since", "v2"), ("fixed in", "v5")]
    assert "2 times" in found.notes[0]


def test_the_installed_release_and_both_ends_come_first():
    assert next_to_try(["a", "b", "c", "d"], {}, 3, "c") == ["c", "a", "d"]
    assert next_to_try(["a", "b", "c", "d"], {}, 1, "elsewhere") == ["a"]


def test_k_workers_cut_the_range_in_k_plus_one_parts():
    versions = [f"v{i}" for i in range(13)]
    assert next_to_try(versions, {"v0": PASSES, "v12": FAILS}, 3, None) == ["v3", "v6", "v9"]
    assert next_to_try(versions, {"v0": PASSES, "v12": FAILS}, 2, None) == ["v4", "v8"]


def test_the_search_goes_on_in_the_longest_part_without_a_refusal():
    versions = [f"v{i}" for i in range(10)]
    seen = {"v0": PASSES, "v9": FAILS, "v3": UNTESTABLE}
    assert next_to_try(versions, seen, 1, None) == ["v6"]
    assert next_to_try(versions, {**seen, "v5": UNTESTABLE}, 1, None) == ["v7"]


def test_a_side_whose_releases_refuse_one_after_another_is_given_up_and_told():
    found, seen = search("u" * 30 + "ff")
    assert found.answer == "always" and sum(v == UNTESTABLE for v in seen.values()) <= PATIENCE + 2
    assert "not tried, as their neighbours could not be tested" in found.notes[0]


def test_a_single_testable_release_of_several_is_no_answer():
    found, _ = search("ufu")
    assert found.answer == "unclear" and "v1 alone could be tested" in found.notes[0]
    assert search("f")[0].answer == "always"


def test_a_search_stopped_early_says_between_which_releases_the_change_lies():
    versions = ["a", "b", "c", "d"]
    seen = {"a": PASSES, "d": FAILS}
    found = finding_of(versions, seen, next_to_try(versions, seen, 4, None))
    assert found.answer == "unclear" and found.version is None
    assert "passes in a and fails in d; not tried between: b, c" in found.notes[0]
    assert finding_of(versions, {"a": FAILS}, ["d"]).answer == "unclear"


@pytest.mark.parametrize(("count", "k", "most"), [(1, 2, 1), (2, 2, 2), (9, 1, 5), (10, 2, 6), (7, 2, 5)])
def test_the_bound_is_that_of_k_section(count, k, most):
    assert most_runs(count, k) == most
