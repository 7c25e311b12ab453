"""A sample of the healthy programs of benchmarks/guests.py: bare and watched they are the same."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import guests

SLOW = ("own_backend", "warnings_once", "freed_memory", "tensor_hooks")


@pytest.mark.parametrize(
    "name", ["uncaught_error", "logged_lines", *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)]
)
def test_a_guest_does_not_notice_that_it_is_watched(name):
    row = guests.guest_row(guests.GUESTS / f"{name}.py")
    assert row["changed"] == [], row["said"]


def test_every_guest_is_small_and_the_devices_share_them_out():
    every = sorted(guests.GUESTS.glob("*.py"))
    assert sorted([*guests.programs("cpu", []), *guests.programs("cuda", [])]) == every
    assert len(guests.programs("cpu", [])) >= 60
    assert all(len(path.read_text().splitlines()) < 40 for path in every)
