"""A sample of the healthy programs of benchmarks/guests.py: bare and watched they are the same."""

import pytest

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


@pytest.mark.parametrize(
    ("source", "ended", "why"),
    [
        ("import torch\n", {"status": 1}, "ends with 1, not 0"),
        ("# status 7\n", {"status": 0}, "ends with 0, not 7"),
        ("import torch\n", {"status": 137, "in_time": False}, "ended by the clock"),
        ("import torch\n", {"compiled": False}, "compiles nothing"),
        ("# no kernel\n", {"compiled": False}, None),
        ("# status 7\n", {"status": 7}, None),
    ],
)
def test_a_program_that_does_not_run_as_it_was_meant_to_says_nothing(source, ended, why):
    healthy = guests.Ended(0, "", "", 0, 1.0, 1.0, 1.0, troubled=False, in_time=True, compiled=True)
    assert guests.why_void(source, healthy._replace(**ended)) == why


def test_a_void_row_is_not_counted_as_unchanged(capsys):
    numbers = dict.fromkeys(guests.WAYS, 1.0)
    row = {"void": None, "changed": [], "status": 0, "seconds": numbers, "peak": numbers}
    guests.print_rows({"good": row, "bad": {**row, "void": "compiles nothing"}})
    said = capsys.readouterr().out
    assert "| VOID: compiles nothing |" in said and "**1 of 1 unchanged, 1 void**" in said
