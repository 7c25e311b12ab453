"""A disk without room never ends the program: what the counters need is reserved, or the program goes on unwatched."""

import os
import subprocess
import sys
import textwrap

import pytest

from torchsleuth.watched.flight import COUNTERS, COUNTERS_BYTES, Flight

PROGRAM = textwrap.dedent("""
    import os, torch

    f = torch.compile(lambda x: x + 1, backend="eager")
    print(f(torch.zeros(1)).item())
    if (pid := os.fork()) == 0:
        print(torch.compile(lambda x: x * 3, backend="eager")(torch.ones(1)).item(), flush=True)
        os._exit(0)
    print(os.waitpid(pid, 0)[1])
""")


@pytest.fixture
def small_disk(tmp_path):
    """A folder with room for `size` bytes; only those who may mount get one."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def made(size):
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk], capture_output=True, check=False
        )
        if mounted.returncode:
            pytest.skip("only those who may mount have a small disk")
        return disk

    yield made
    subprocess.run(["umount", "-l", disk], capture_output=True, check=False)


def test_the_counters_have_their_blocks_before_anyone_counts(tmp_path):
    flight = Flight(str(tmp_path))
    assert (flight.folder / COUNTERS).stat().st_blocks * 512 >= COUNTERS_BYTES


def test_without_the_blocks_there_is_no_flight_and_no_mapping(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        Flight(str(tmp_path))


@pytest.mark.parametrize(
    "room", [64 << 10, 400 << 10]
)  # for no counters at all, and for those of one process
def test_a_program_on_a_full_disk_ends_as_it_does_without_us(tmp_path, small_disk, room):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "torchsleuth", "run", "--cases", str(small_disk(room)), "program.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False)
    assert (ran.returncode, ran.stdout) == (0, "1.0\n3.0\n0\n"), ran.stderr
    if room < COUNTERS_BYTES:
        assert ran.stderr.count("No space left") >= 1 and "goes on unwatched" in ran.stderr


FAILS = textwrap.dedent("""
    import os, torch

    if fill := os.environ.get("FILL"):  # the disk fills while the program runs
        with open(fill, "wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass
    f = torch.compile(lambda x: torch.relu(x), backend="sleuth_relu_compile_error")
    try:
        f(torch.zeros(1))
    except Exception as error:
        print(type(error).__name__)
""")


@pytest.mark.parametrize("room", [40 << 10, 200 << 10])
def test_a_failure_that_could_not_be_recorded_is_not_said_to_be_none(tmp_path, small_disk, room):
    (tmp_path / "program.py").write_text(FAILS)
    command = [sys.executable, "-m", "torchsleuth", "run", "--cases", str(small_disk(room)), "program.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False)
    assert (ran.returncode, ran.stdout) == (0, "BackendCompilerFailed\n"), ran.stderr
    assert "No space left" in ran.stderr.splitlines()[-1] and "ran unwatched" in ran.stderr
    assert "nothing was compiled" not in ran.stderr and "bug in torchsleuth" not in ran.stderr, ran.stderr


def test_a_disk_that_is_full_by_the_time_of_the_failure_is_named(tmp_path, small_disk):
    text = FAILS.replace("if fill", "torch.compile(torch.sin)(torch.ones(1))\nif fill")
    (tmp_path / "program.py").write_text(text)
    disk = small_disk(3 << 20)
    command = [
        sys.executable,
        "-m",
        "torchsleuth",
        "run",
        "--record-only",
        "--cases",
        str(disk),
        "program.py",
    ]
    environment = {**os.environ, "FILL": str(disk / "filled")}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "BackendCompilerFailed\n"), ran.stderr
    assert "a failure may be missing" in ran.stderr and "No space left" in ran.stderr, ran.stderr
    assert "nothing failed" not in ran.stderr and "bug in torchsleuth" not in ran.stderr, ran.stderr
