"""A run whose secrets are everywhere: none reaches the case or our words, and the repro still fails the same way."""

from program_runs import run_watched

PROGRAM = """
    import os, sys, torch
    os.environ["LATE_API_KEY"] = "l4te-s3cret-value"
    PASSWORD = "c0rrect-horse-battery"
    LATE = os.environ["LATE_API_KEY"]

    def backend(graph, inputs, word=PASSWORD):
        raise RuntimeError(f"the cache at redis://me:pa55w0rd@host/0 refused this graph {len(word)}")

    @torch.compile(backend=backend)
    def step(x):
        return x.sin() + 1

    try:
        step(torch.ones(4))
    except Exception:
        pass

    def second(graph, inputs):
        raise ValueError(f"the server does not know {LATE} nor {sys.argv[2]}")

    @torch.compile(backend=second)
    def other(x):
        return x.cos()

    other(torch.ones(4))
"""
SECRETS = ("l4te-s3cret-value", "c0rrect-horse-battery", "pa55w0rd", "topS3cretOption")


def test_no_secret_reaches_a_case_and_the_repro_matches(tmp_path):
    ran = run_watched(tmp_path, PROGRAM, arguments=("--api-key", "topS3cretOption"))
    refused = next(case for case in ran.cases if "redis" in case["signature"]["summary"])
    assert refused["signature"]["summary"].startswith("RuntimeError: the cache at redis://<hidden>@host")
    assert "ValueError: the server does not know <hidden> nor <hidden>" in str(ran.cases)
    assert refused["script"][1:] == ["--api-key", "<hidden>"]
    for path in (tmp_path / "cases").rglob("*"):
        if path.is_file():
            assert not any(word.encode() in path.read_bytes() for word in SECRETS), path
    assert not any(word in line for word in SECRETS for line in ran.ours())
    assert refused["verified"]["reproduced"] == 1, ran.stderr
