"""`verify` asks of a script that it fails, and that it passes without the compiler."""

import json

import pytest
from click.testing import CliRunner

from torchsleuth.front.cli.verify import verify_verb

SCRIPT = """
import os, sys
EXPECTED = {"kind": "compile_error", "phase": "compile", "exceptions": ["ValueError"], "message": "no"}
if os.environ.get("TORCH_COMPILE_DISABLE") == "1" and PASSES:
    print("NOT REPRODUCED")
    sys.exit(0)
print("REPRODUCED: ValueError: no")
sys.exit(1)
"""


@pytest.mark.parametrize(
    ("passes", "said"),
    [
        (True, "it passes without the compiler\n"),
        (False, "it fails without the compiler, too (ValueError: no)"),
    ],
)
def test_a_script_that_fails_without_the_compiler_too_is_not_verified(tmp_path, passes, said):
    script = tmp_path / "repro.py"
    script.write_text(SCRIPT.replace("PASSES", str(passes)))
    shown = CliRunner().invoke(
        verify_verb, [str(script), "--times", "2"], standalone_mode=False, help_option_names=["-h", "--help"]
    )
    assert shown.return_value == (0 if passes else 1)
    assert "failed the same way in 2 of 2 fresh processes" in shown.stdout and said in shown.stdout
    told = CliRunner().invoke(
        verify_verb,
        [str(script), "--times", "1", "--json"],
        standalone_mode=False,
        help_option_names=["-h", "--help"],
    )
    document = json.loads(told.stdout)
    assert (document["reproduced"], document["same_signature"], document["eager_passes"]) == (
        1,
        passes,
        passes,
    )
