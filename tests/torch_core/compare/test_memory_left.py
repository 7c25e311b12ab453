"""Whose memory it was: what is taken inside a check is the check's, copies of inputs are ours, the rest is the program's."""

import pytest
import torch

from torchsleuth.torch_core.compare.reference import memory as memory
from torchsleuth.torch_core.compare.reference.memory import (
    EXTRA,
    LEAST,
    copies_counted,
    memory_counted_apart,
    memory_left,
    note_run,
)

CPU = torch.device("cpu")
MIB = 1 << 20


class Machine:
    """Memory that a test moves."""

    def __init__(self) -> None:
        self.now = self.peak = 100 * MIB

    def take(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)


@pytest.fixture
def machine(monkeypatch):
    made = Machine()
    monkeypatch.setattr(memory, "_peak_bytes", lambda device: made.peak)
    monkeypatch.setattr(memory, "_bytes_now", lambda device: made.now)
    monkeypatch.setattr(memory, "_program", {})
    monkeypatch.setattr(memory, "_copied", {})
    return made


def test_a_check_may_take_what_the_program_takes_and_a_gibibyte(machine):
    with memory_counted_apart([]):
        assert memory_left(CPU) == 100 * MIB + EXTRA


def test_what_a_check_takes_does_not_raise_what_the_next_may(machine):
    for _ in range(3):
        with memory_counted_apart([]):
            assert memory_left(CPU) == 100 * MIB + EXTRA
            machine.take(900 * MIB)
            machine.now -= 900 * MIB


def test_a_check_inside_a_check_sees_the_same_program(machine):
    with memory_counted_apart([]):
        machine.take(800 * MIB)
        with memory_counted_apart([]):
            assert memory_left(CPU) == 2 * 100 * MIB + EXTRA - 900 * MIB
        machine.now -= 800 * MIB


def test_a_program_that_grows_gives_more_room(machine):
    with memory_counted_apart([]):
        machine.take(300 * MIB)
        machine.now -= 300 * MIB
    machine.take(600 * MIB)
    with memory_counted_apart([]):
        assert memory_left(CPU) == 700 * MIB + EXTRA


def test_some_room_there_always_is(machine):
    with memory_counted_apart([]):
        machine.take(4 << 30)
        assert memory_left(CPU) == LEAST


def test_copies_of_inputs_are_not_the_programs(machine):
    inputs = [torch.empty(200 * MIB, dtype=torch.uint8)]
    for _ in range(3):
        with copies_counted(inputs, list):
            machine.take(200 * MIB)
            with memory_counted_apart(inputs):
                assert memory_left(CPU) == 2 * 100 * MIB + EXTRA - 300 * MIB
            machine.now -= 200 * MIB


def test_what_an_earlier_check_took_is_not_the_programs_when_it_peaks_again(machine):
    with copies_counted([], list), memory_counted_apart([]):
        machine.take(900 * MIB)
        machine.now -= 900 * MIB
    machine.take(1000 * MIB)  # a peak of ours and the program's that nobody can tell apart
    machine.now -= 1000 * MIB
    with copies_counted([], list), memory_counted_apart([]):
        assert memory_left(CPU) == 100 * MIB + EXTRA


def test_of_a_run_beside_copies_the_copies_do_not_count(machine, monkeypatch):
    device = torch.device("cuda", 0)
    monkeypatch.setattr(memory, "_bytes_by_device", lambda copies: {CPU: 5 * MIB, device: 40 * MIB})
    machine.take(200 * MIB)
    note_run([])
    assert memory._program == {device: 260 * MIB}
