"""Where nothing can be recorded the program goes on, and nobody says that nothing was compiled."""

from program_runs import run_watched

PROGRAM = """
    import json, os, shutil, torch

    spool = json.loads(os.environ["TORCHSLEUTH_WATCH"])["spool"]
    shutil.rmtree(spool)
    open(spool, "w").close()  # a file is in the way of every folder below
    print(torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(1)).item())
"""


def test_a_run_that_could_not_be_recorded_says_so(tmp_path):
    ran = run_watched(tmp_path, PROGRAM)
    assert (ran.status, ran.stdout) == (0, "1.0\n"), ran.stderr
    assert "cannot record, the program goes on unwatched" in ran.stderr
    assert "nothing was recorded" in ran.stderr and "nothing was compiled" not in ran.stderr
