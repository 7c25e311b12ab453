"""How a process ended is told alike, whoever reports its status."""

import pytest

from torchsleuth.core.protocol.failures import signal_of_status, signature_of_crash


@pytest.mark.parametrize(
    ("status", "name"),
    [(-11, "SIGSEGV"), (139, "SIGSEGV"), (-9, "SIGKILL"), (134, "SIGABRT"), (7, "exit 7"), (255, "exit 255")],
)
def test_a_status_is_named_by_its_signal(status: int, name: str) -> None:
    assert signal_of_status(status) == name


def test_the_summary_of_a_crash_reads_well() -> None:
    assert signature_of_crash(-11, "compile").summary == "SIGSEGV while compiling"
