"""The failing programs of a corpus, where there is one: each becomes a case of the right kind, and its script fails too.

TORCHSLEUTH_CORPUS names a folder with `cases/case_*.py` and `.json`, and `hook/` to put on PYTHONPATH.
"""

import json
import os
from pathlib import Path

import pytest

from program_runs import environment, sleuth

CORPUS = Path(os.environ.get("TORCHSLEUTH_CORPUS", "nowhere"))
PROGRAMS = sorted(CORPUS.glob("cases/case_*.json"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PROGRAMS, reason="TORCHSLEUTH_CORPUS names no corpus"),
]


def run(program, folder, fault):
    facts = json.loads(program.read_text())
    env = environment(folder, FAULT=fault)
    env["PYTHONPATH"] = os.pathsep.join([str(CORPUS / "hook"), env["PYTHONPATH"]])
    options = {"accuracy": ["--check-accuracy"], "hang": ["--timeout", "30"]}.get(facts["kind"], [])
    return facts, sleuth("run", *options, program.with_suffix(".py"), cwd=folder, env=env, timeout=800)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.stem)
def test_a_faulty_program_becomes_a_case_with_a_script_that_fails_the_same_way(program, tmp_path):
    facts, ran = run(program, tmp_path, json.loads(program.read_text())["fault"])
    wanted = (facts["kind"], facts["phase"], facts["direction"])
    found = [c for c in ran.cases if (c["kind"], c["phase"], c["direction"]) == wanted]
    assert found, (wanted, [(c["kind"], c["phase"], c["direction"]) for c in ran.cases], ran.stderr[-2000:])
    for case in ran.cases:
        assert case["verified"]["reproduced"] == 1, ran.stderr[-2000:]


@pytest.mark.parametrize("program", [p for p in PROGRAMS if "backend" not in p.stem], ids=lambda p: p.stem)
def test_the_healthy_program_leaves_no_case(program, tmp_path):
    _, ran = run(program, tmp_path, "none")
    assert (ran.status, ran.cases) == (0, []), ran.stderr[-2000:]
    assert "CASE FINISHED WITHOUT ERROR" in ran.stdout
