"""`doctor`: what of this machine torchsleuth can use, and what is missing. Each line is something that was tried."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from torchsleuth.cli.options import cases_option, json_option
from torchsleuth.cli.output import print_json, show

# Asked in a process of its own: a broken torch must not take the doctor down, and importing it takes seconds.
_ASK_TORCH = ("-P", "-m", "torchsleuth.torch_internals.check")


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: `good` is False where something is missing, with the remedy in `text`."""

    name: str
    good: bool
    text: str


@click.command("doctor")
@cases_option
@json_option
def doctor_verb(cases_dir: Path, as_json: bool) -> int:
    """What of this machine torchsleuth can use, and what is missing.

    \b
    torchsleuth doctor
    torchsleuth doctor --json
    """
    checks = [_python(), *_torch(), _compiler(), _folder(cases_dir), _stacks()]
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        for check in checks:
            show(f"{'ok     ' if check.good else 'MISSING'}  {check.name}: {check.text}")
    return 0 if all(check.good for check in checks) else 1


def _python() -> Check:
    version = sys.version.split()[0]
    return Check("python", sys.version_info >= (3, 11), f"{version} (3.11 or later is needed)")


def _torch() -> list[Check]:
    if importlib.util.find_spec("torch") is None:
        return [Check("torch", False, "not installed here: pip install 'torch>=2.11'")]
    try:
        asked = subprocess.run([sys.executable, *_ASK_TORCH], capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return [Check("torch", False, "its compiler cannot be watched here: no answer in 300 s")]
    try:
        answer = json.loads(asked.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        reason = " ".join(asked.stderr.strip().splitlines()[-1:])
        return [Check("torch", False, f"its compiler cannot be watched here: {reason}")]
    release = tuple(int(part) for part in answer["torch"].split("+")[0].split(".")[:2] if part.isdigit())
    device = answer["device"] or "no CUDA device; CPU failures only"
    return [
        Check(
            "torch",
            release >= (2, 11),
            f"{answer['torch']} (2.11 or later is needed); its compiler can be watched",
        ),
        Check("accelerator", True, device),
    ]


def _compiler() -> Check:
    for name in (os.environ.get("CXX"), "g++", "clang++"):
        if name and shutil.which(name):
            return Check("C++ compiler", True, f"{name}; Inductor needs one for CPU kernels")
    return Check("C++ compiler", False, "none found; Inductor cannot compile for the CPU: install g++")


def _folder(cases_dir: Path) -> Check:
    existing = next(p for p in [cases_dir.absolute(), *cases_dir.absolute().parents] if p.exists())
    if not os.access(existing, os.W_OK):
        return Check("cases", False, f"{cases_dir} cannot be written; name another folder with --cases DIR")
    free = shutil.disk_usage(existing).free / 2**30
    return Check("cases", free > 0.5, f"{cases_dir}, {free:.1f} GiB free on its disk")


def _stacks() -> Check:
    known = hasattr(signal, "SIGRTMAX")
    return Check("stacks of hanging processes", True, "by a real-time signal" if known else "by SIGUSR2")
