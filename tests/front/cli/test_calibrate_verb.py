"""`calibrate` measures in another process: what that says is shown, and its death is one sentence."""

import json
import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from program_runs import environment
from torchsleuth.front.cli import doctor
from torchsleuth.front.cli.doctor import NotMeasured, calibrate_verb

STARTS = 'import os, sys, time\nprint(\'{"done": 1, "total": 3}\', flush=True)\n'
MEASURED = {"measured": {"cpu/float32": {"graphs": 1, "z_max": 2.5}}, "path": "/somewhere.json"}


def measured(monkeypatch, program, *arguments):
    monkeypatch.setattr(doctor, "_MEASURE", ("-c", program))
    return CliRunner().invoke(
        calibrate_verb, list(arguments), standalone_mode=False, help_option_names=["-h", "--help"]
    )


def test_what_was_measured_is_shown_with_where_it_is_kept(monkeypatch):
    program = STARTS + f"print({json.dumps(MEASURED)!r})"
    shown = measured(monkeypatch, program)
    assert "cpu/float32: graphs 1, z_max 2.5\nkept in /somewhere.json\n" in shown.output
    assert "1 of 3 graphs" in shown.stderr
    assert json.loads(measured(monkeypatch, program, "--json").stdout) == MEASURED


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (
            STARTS + "os.kill(os.getpid(), 11)",
            r"was ended by signal 11 after 1 of 3 graphs \(it said nothing\)",
        ),
        (
            "raise RuntimeError('no such device')",
            r"status 1 before the first graph \(RuntimeError: no such device",
        ),
        (STARTS, r"ended with status 0 after 1 of 3 graphs"),
    ],
)
def test_a_measuring_process_that_does_not_come_to_its_end_is_one_sentence(monkeypatch, program, says):
    error = measured(monkeypatch, program).exception
    assert isinstance(error, NotMeasured)
    with pytest.raises(NotMeasured, match=says):
        raise error


@pytest.mark.slow
def test_ctrl_c_ends_the_measuring_process_and_keeps_nothing(tmp_path):
    kept = tmp_path / "calibration.json"
    child = subprocess.Popen(
        [sys.executable, "-m", "torchsleuth", "calibrate"],
        env=environment(tmp_path, TORCHSLEUTH_CALIBRATION=str(kept)), stderr=subprocess.PIPE,
    )  # fmt: skip
    os.read(child.stderr.fileno(), 1)  # the first graph is done
    child.send_signal(signal.SIGINT)
    # stderr ends when the last process that holds it does.
    assert b"stopped" in child.stderr.read() and child.wait() == 130 and not kept.exists()


@pytest.mark.slow
def test_a_real_measurement_is_kept(tmp_path):
    kept = tmp_path / "calibration.json"
    command = [sys.executable, "-m", "torchsleuth", "calibrate", "--graphs", "1", "--json"]
    env = environment(tmp_path, TORCHSLEUTH_CALIBRATION=str(kept))
    said = json.loads(subprocess.run(command, env=env, capture_output=True, check=True).stdout)
    assert said.pop("path") == str(kept) and said == json.loads(kept.read_text())
