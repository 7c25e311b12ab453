"""What a process of its own says about torch: a broken one must not take the front down."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

from torchsleuth.cases.errors import SleuthError

_ASK_TORCH = ("-P", "-m", "torchsleuth.torch_internals.check")
SECONDS = 300


class TorchUnfit(SleuthError):
    """There is no torch here whose compiler can be watched."""


def ask_torch() -> dict[str, Any]:
    """Version, device, Triton, backends and modes, once every hook was put in: `ask_torch()["torch"]`."""
    if importlib.util.find_spec("torch") is None:
        raise TorchUnfit("not installed here: pip install 'torch>=2.11'")
    try:
        asked = subprocess.run([sys.executable, *_ASK_TORCH], capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise TorchUnfit(f"its compiler cannot be watched here: no answer in {SECONDS} s") from None
    try:
        return dict(json.loads(asked.stdout.strip().splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        reason = " ".join(asked.stderr.strip().splitlines()[-1:]) or f"status {asked.returncode}"
        raise TorchUnfit(f"its compiler cannot be watched here: {reason}; install it anew") from None
