"""What a process of its own says about torch: a broken one must not take the front down."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

from torchsleuth.core.cases.errors import SleuthError

_CHECK = "torchsleuth.torch_internals.check"
_PRIVATE_NAMES = "torchsleuth.torch_internals.private_names"
SECONDS = 300


class TorchUnfit(SleuthError):
    """There is no torch here whose compiler can be watched."""


def ask_torch() -> dict[str, Any]:
    """Version, device, Triton, backends and modes, once every hook was put in: `ask_torch()["torch"]`."""
    return _ask(_CHECK)


def ask_torch_names() -> dict[str, Any]:
    """How many private names of torch we rest on, and which are missing here: `ask_torch_names()["missing"]`."""
    return _ask(_PRIVATE_NAMES)


def _ask(module: str) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", module]
    if importlib.util.find_spec("torch") is None:
        raise TorchUnfit("not installed here: pip install 'torch>=2.11'")
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise TorchUnfit(f"its compiler cannot be watched here: no answer in {SECONDS} s") from None
    try:
        return dict(json.loads(asked.stdout.strip().splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        reason = " ".join(asked.stderr.strip().splitlines()[-1:]) or f"status {asked.returncode}"
        raise TorchUnfit(f"its compiler cannot be watched here: {reason}; install it anew") from None
