"""Ranges as people write them, and the order of releases."""

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given

from torchsleuth.core.cases.releases import BadRange, is_name, names_listed, range_of, release_named

LISTED = ["2.10.0", "2.9.1", "2.11.0", "2.12.0", "2.12.1", "2.15.0", "2.15.1", "2.16.0rc1", "2.13.0+cpu"]
NIGHTS = ["2.16.0.dev20261001+cpu", "2.16.0.dev20261003", "2.17.0.dev20261101", "2.12.0.dev20260101"]


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("2.11..2.15", ["2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.15.0", "2.15.1"]),
        ("2.12.1..2.15.0", ["2.12.1", "2.13.0", "2.15.0"]),
        ("2.9..2.9", ["2.9.1"]),
        ("2.12.1..2.12", ["2.12.1"]),
        ("2.15..nightly", ["2.15.0", "2.15.1", "2.17.0.dev20261101"]),
        ("2.15..2026-10-31", ["2.15.0", "2.15.1", "2.16.0.dev20261003"]),
        ("2026-10-01..2026-10-31", ["2.16.0.dev20261001", "2.16.0.dev20261003"]),
        ("2026-10-02..nightly", ["2.16.0.dev20261003", "2.17.0.dev20261101"]),
        ("3..4", []),
    ],
)
def test_a_range_holds_both_its_ends_and_all_patch_releases(text, chosen):
    assert range_of(text).chosen_of(LISTED + NIGHTS) == chosen


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2.11", "not a range"),
        ("2.11...2.12", "not a range"),
        ("..2.12", "not a range"),
        ("a..b", "not a range"),
        ("nightly..2.12", "not a range"),
        ("2026-13-01..2026-10-31", "not a range"),
        ("2.15..2.11", "write the older one first: 2.11..2.15"),
        ("2026-11-01..2026-10-01", "write the older one first"),
        ("2026-10-01..2.15", "starts with a date"),
        ("２.1..2.2", "not a range"),
    ],
)
def test_what_is_no_range_is_said_in_one_sentence(text, says):
    with pytest.raises(BadRange, match=says) as caught:
        range_of(text)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


def test_a_list_is_put_in_order_and_a_wrong_name_is_said():
    assert names_listed(" 2.12.1, 2.9.0,2.12.1+cpu,2.10.0rc2") == ["2.9.0", "2.10.0rc2", "2.12.1"]
    with pytest.raises(BadRange, match="'latest' is not a release of torch"):
        names_listed("2.12.1,latest")
    with pytest.raises(BadRange, match="names no release"):
        names_listed(" , ")


def test_nightlies_candidates_and_the_release_come_in_this_order():
    order = ["2.12.0.dev20260101", "2.12.0.dev20260301", "2.12.0rc1", "2.12.0", "2.12.0.post1", "2.12.1"]
    releases = [release_named(name) for name in order]
    assert all(a < b for a, b in itertools.pairwise(releases))


@given(st.text("0123456789.drevcpost+-", max_size=20))
def test_any_text_is_a_name_or_is_refused_with_a_sentence(text):
    if is_name(text):
        assert release_named(text) == release_named(text + "+cpu")
    else:
        with pytest.raises(BadRange):
            names_listed(text + "x")
