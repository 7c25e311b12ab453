"""The environment in which trials run: the user's, less what would hide a compile or start threads.

A kernel cache of the search's own is shared between its trials; caches of whole graphs are off, because a graph that
is found there is not compiled, and the failure looked for is in the compiling.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from torchsleuth.child.child_process import DEVICE, ONCE, SHAPES
from torchsleuth.core.processes.starting import fresh_environment, sees_devices
from torchsleuth.core.protocol.trials import Question, Trial

_INDUCTOR = re.compile(r"inductor|compile_fx|torch\.compile")
_ACCELERATOR = re.compile(r"\b(?:cuda|hip|xpu|mps|hpu|npu|mtia)\b")


def trial_environment(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """What the fork server and all below it are started with; `folder` is the search's own.

    >>> trial_environment({}, Path("search"))["TORCHINDUCTOR_COMPILE_THREADS"]
    '1'
    """
    made = fresh_environment(environment, folder / "kernels")
    return {
        **made,
        "TRITON_CACHE_DIR": str(folder / "kernels" / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        # A library with threads of its own must not be forked; numpy's would start them on import.
        "OPENBLAS_NUM_THREADS": "1",
    }


def uses_accelerator(trial: Trial) -> bool:
    """Whether a trial may touch a device whose context does not survive a fork.

    >>> uses_accelerator(Trial("torch.zeros(2, device='cuda')", Signature("crash", "run")))
    True
    """
    described = json.dumps([trial.inputs, trial.constants])
    return any(_ACCELERATOR.search(text) for text in (described, trial.graph, trial.embedded))


def served_by(trial: Trial) -> str:
    """Which kind of process a trial needs: one for a device, one that works out shapes, or one of its own.

    >>> served_by(Trial("", Signature("crash", "run")))
    'once'
    """
    # A program may name a device only to see whether there is one.
    if uses_accelerator(trial) and (trial.question is not Question.PROGRAM or sees_devices({})):
        return DEVICE
    return SHAPES if trial.question is Question.SHAPES else ONCE


def needs_kernels(trial: Trial) -> bool:
    """Whether a trial may get as far as the C++ compiler.

    Not where it is decided by the time its graph is lowered, nor with a backend that has nothing to do with Inductor.

    >>> from torchsleuth.core.cases.record import CompileSettings
    >>> mine = CompileSettings(backend="mine")
    >>> needs_kernels(Trial("", Signature("crash", "run"), mine, embedded="def mine(gm, inputs): ..."))
    False
    """
    expected = trial.expected
    if trial.question is Question.PROGRAM:
        return expected.kind != "capture_error" and not trial.change.uncompiled
    if trial.question is not Question.FAILS:
        return False
    if trial.settings.backend != "inductor" and not _INDUCTOR.search(trial.embedded):
        return False
    if not (trial.stop_early and expected.kind == "compile_error"):
        return True
    # It loads torch, which a process that asks nothing of the kind has no other need of.
    from torchsleuth.torch_internals.compile_stages import failing_stage

    return failing_stage(expected.exceptions, expected.frames) not in ("joint", "lowering")
