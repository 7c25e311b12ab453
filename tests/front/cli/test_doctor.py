"""`doctor` says what is missing, and the fix; what is only useful is no reason for a bad status."""

import json
import shutil
import stat
import subprocess
import sys

import pytest

from torchsleuth.front.cli import doctor
from torchsleuth.front.cli.main import main

TORCH = {"torch": "2.13.0", "built_for": None, "device": None, "device_error": None, "triton": None}


@pytest.fixture
def checks(capsys, monkeypatch, tmp_path):
    """Runs the verb with a torch that answers so; its status and what it says by name."""

    def run(**answer):
        monkeypatch.setattr(doctor, "ask_torch", lambda: doctor.TorchHere(**{**TORCH, **answer}))
        status = main(["doctor", "--json", "--cases", str(tmp_path / "cases")])
        return status, {each["name"]: each for each in json.loads(capsys.readouterr().out)}

    return run


def test_a_machine_without_device_ray_and_uv_is_good_enough(checks, monkeypatch):
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name in ("uv", "nvidia-smi") else which(name))
    status, found = checks()
    assert status == 0
    assert not found["uv"]["good"] and "pip install uv" in found["uv"]["text"] and not found["uv"]["needed"]
    assert not found["accelerator"]["good"] and "triton" not in found


def test_a_torch_that_is_too_old_is_told_how_to_become_newer(checks):
    status, found = checks(torch="2.6.1+cu124")
    assert status == 1 and "pip install --upgrade" in found["torch"]["text"]


def test_a_device_on_which_nothing_runs_and_one_without_triton_are_missing_something(checks):
    status, found = checks(built_for="13.0", device_error="no kernel image is available")
    assert status == 1 and "no kernel image" in found["accelerator"]["text"]
    status, found = checks(built_for="13.0", device="NVIDIA H200")
    assert status == 1 and "pip install triton" in found["triton"]["text"]
    status, found = checks(built_for="13.0", device="NVIDIA H200", triton="3.7.0")
    assert status == 0 and found["triton"]["good"]


def test_a_compiler_that_compiles_nothing_is_as_good_as_none(checks, monkeypatch, tmp_path):
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho 'cannot find -lgomp' >&2\nexit 1\n")
    broken.chmod(broken.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    status, found = checks()
    assert status == 1
    assert (
        "cannot find -lgomp" in found["C++ compiler"]["text"]
        and "install g++" in found["C++ compiler"]["text"]
    )


@pytest.mark.parametrize(
    ("printed", "error", "says"),
    [("", "ImportError: libcudart.so: cannot open", "libcudart.so"), ("nonsense", "", "install it anew")],
)
def test_a_torch_that_cannot_be_asked_is_a_sentence(monkeypatch, printed, error, says):
    answer = subprocess.CompletedProcess([], 1, printed, error)
    monkeypatch.setattr(doctor.subprocess, "run", lambda *_, **__: answer)
    assert says in doctor._torch()[0].text and not doctor._torch()[0].good


def test_a_newer_torch_is_told_with_what_of_it_cannot_be_watched(monkeypatch):
    printed = json.dumps({"torch": "2.16.0", "unwatched": ["torch 2.16.0 looks at frames in another way"]})
    answer = subprocess.CompletedProcess([], 0, printed, "")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *_, **__: answer)
    version, frames = doctor._torch()[:2]
    assert version.good and "newer than 2.15, the last that was tried" in version.text
    assert not frames.needed and frames.word == "without" and "doctor --torch-names" in frames.text


def test_the_torch_of_another_python_is_asked_for_names(tmp_path, capsys):
    made = tmp_path / "python"
    made.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    made.chmod(0o755)
    assert main(["doctor", "--torch-names", "--python", str(made), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["missing"] == []
    assert main(["doctor", "--torch-names", "--python", str(tmp_path / "none")]) == 2
    assert "cannot be started" in capsys.readouterr().err


def test_torch_names_asks_the_torch_that_is_here(capsys):
    assert main(["doctor", "--torch-names", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["missing"] == [] and answer["names"] > 200 and answer["torch"]


def test_a_missing_torch_name_is_said_with_what_rests_on_it(monkeypatch, capsys):
    use = {
        "file": "hooks.py",
        "line": 7,
        "purpose": "The places every compile passes.",
        "instead": "not watched",
    }
    answer = {"torch": "9.0", "names": 300, "missing": [{"name": "torch._x.y", "used_by": [use]}]}
    monkeypatch.setattr(doctor, "ask_torch_names", lambda _python: answer)
    assert main(["doctor", "--torch-names"]) == 1
    said = capsys.readouterr().out
    assert "MISSING  torch._x.y" in said and "hooks.py:7: The places every compile passes." in said
    assert "instead: not watched" in said
    assert main(["doctor", "--torch-names", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == answer


def test_a_torch_that_cannot_be_asked_for_names_is_a_sentence(monkeypatch, capsys):
    answer = subprocess.CompletedProcess([], 1, "", "ImportError: libcudart.so: cannot open")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *_, **__: answer)
    assert main(["doctor", "--torch-names"]) == 2
    assert "torch: its compiler cannot be watched here: ImportError" in capsys.readouterr().err
