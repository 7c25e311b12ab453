"""`run` ends as the program did, whatever becomes of its own work, and what could not be written is not lost."""

import json
import os
import subprocess
import sys

import pytest

from program_runs import environment, write_program

FAILS = """
    import os, sys, torch

    def bad(gm, inputs):
        raise RuntimeError("planted")

    try:
        torch.compile(lambda x: x.sin(), backend=bad)(torch.ones(2))
    except Exception:
        print("caught", flush=True)
    if "fill" in sys.argv:  # all of the disk on which the cases are
        with open("cases/filler", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 12))
            except OSError:
                pass
    os._exit(5)
"""


def run(folder, *arguments, redirect="", options=("--record-only",)):
    start = "(" if "status)" in " ".join(arguments) else ""
    command = start + " ".join([sys.executable, "-m", "torchsleuth", "run", *options, *arguments])
    return subprocess.run(
        ["sh", "-c", f"{command} {redirect}"],
        cwd=folder,
        env={**environment(folder), "TORCHSLEUTH_CASES": str(folder / "cases")},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.mark.parametrize("redirect", ["2>&-", "2>/dev/full", ">&- 2>&- <&-"])
def test_with_nobody_to_tell_the_status_is_the_programs(tmp_path, redirect):
    # Which streams it finds closed is the program's to know.
    looks = "import os, sys\nclosed = [n for n in (0, 1, 2) if not os.path.exists(f'/proc/self/fd/{n}')]\n"
    write_program(tmp_path, looks + "open('closed', 'w').write(str(closed))\nsys.exit(5)")
    bare = subprocess.run(["sh", "-c", f"{sys.executable} program.py {redirect}"], cwd=tmp_path, check=False)
    without_us = (tmp_path / "closed").read_text()
    assert run(tmp_path, "program.py", redirect=redirect).returncode == bare.returncode == 5
    assert (tmp_path / "closed").read_text() == without_us


def test_with_a_reader_that_has_gone_the_status_is_the_programs(tmp_path):
    write_program(tmp_path, "import sys, time; time.sleep(1); sys.exit(5)")
    run(tmp_path, "program.py;", "echo $? >status)", redirect="2>&1 | true")
    assert (tmp_path / "status").read_text() == "5\n"


def test_a_full_disk_at_the_end_keeps_status_and_record(tmp_path):
    disk = tmp_path / "cases"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2M", "none", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only those who may mount have a small disk")
    try:
        write_program(tmp_path, FAILS)
        ran = run(tmp_path, "program.py", "fill")
        assert (ran.returncode, ran.stdout) == (5, "caught\n"), ran.stderr
        assert "could not be made a case" in ran.stderr and "bug in torchsleuth" not in ran.stderr
        assert not list(disk.glob("*/case.json"))
        (disk / "filler").unlink()
        write_program(tmp_path, "print('healthy')", "healthy.py")
        again = run(tmp_path, "healthy.py")
        assert again.returncode == 0, again.stderr
        assert [json.loads(p.read_text())["kind"] for p in disk.glob("*/case.json")] != []
        assert not list((disk / ".spool").glob("*"))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def test_a_case_of_a_newer_torchsleuth_in_the_way_keeps_status_and_record(tmp_path):
    write_program(tmp_path, FAILS)
    assert run(tmp_path, "program.py").returncode == 5
    (path,) = (tmp_path / "cases").glob("*/case.json")
    newer = json.dumps({**json.loads(path.read_text()), "schema": 999})
    path.write_text(newer)
    ran = run(tmp_path, "program.py")
    assert (ran.returncode, ran.stdout) == (5, "caught\n"), ran.stderr
    assert path.read_text() == newer
    assert os.listdir(tmp_path / "cases" / ".spool")
    write_program(tmp_path, "print('healthy')", "healthy.py")
    again = run(tmp_path, "healthy.py")  # also where the left-over cannot be adopted
    assert (again.returncode, again.stdout) == (0, "healthy\n"), again.stderr
