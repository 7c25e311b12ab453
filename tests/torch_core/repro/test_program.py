"""The script of a whole program: how it knows its failure."""

import re
import subprocess
import sys

from torchsleuth.script_runtime.signature import Signature
from torchsleuth.torch_core.repro.program import program_script
from torchsleuth.torch_core.repro.script import holds


def test_a_program_knows_its_failure_by_the_error_that_dynamo_shows_of_it():
    signature = Signature(
        "capture_error", "capture", ("dynamo.UserError", "fx.Guard"), "Could not guard on #"
    )
    recorded = (
        "fx.Guard: Could not guard on u0\n\nThe above exception was the direct cause of the following exception:\n\n"
        "dynamo.UserError: Could not guard on u0\n"
    )
    text = program_script("step(1)", signature, recorded, "2.13.0")
    test = re.search(r"if (re\.search.*):\n", text)[1]
    assert holds(test, "dynamo.UserError: Could not guard on zuf3") and not holds(test, "UserError: another")


def test_both_runs_of_a_wrong_call_draw_the_same_random_numbers(tmp_path):
    """Weights that nobody seeded differ from run to run, which is no difference to eager."""
    program = "import torch\n\nlin = torch.nn.Linear(2, 2)\nwrong = [lin.weight]\n"
    text = program_script(program, Signature("accuracy", "capture", outputs=("result",)), "", "2.13.0")
    script = tmp_path / "repro.py"
    script.write_text(text)
    ended = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert ended.stdout.endswith("NOT REPRODUCED\n"), ended.stdout
