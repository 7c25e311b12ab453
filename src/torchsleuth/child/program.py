"""A whole program run in a trial's process as `python script.py` would run it, and how it ended.

Its text need not lie on disk: Python finds the source of its functions under the name of the script.
"""

from __future__ import annotations

import builtins
import linecache
import os
import re
import sys
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchsleuth.child.compile import use_threads
from torchsleuth.core.cases.crash import signature_of_crash
from torchsleuth.core.cases.record import WRONG
from torchsleuth.core.processes.sealed import fill_fresh_memory
from torchsleuth.core.protocol.trials import Outcome, Seen, Trial
from torchsleuth.script_runtime.signature import Signature, signature_of_exception
from torchsleuth.torch_core.repro.program import NO_MATTER
from torchsleuth.torch_internals.hooks import hook_backend_calls

# Exceptions of Dynamo's that carry one of a compiler behind it.
_COMPILERS = ("BackendCompilerFailed", "InductorError")


def run_program(trial: Trial, announce: Callable[[str], None] = lambda phase: None) -> Outcome:
    """What comes of the program `trial.graph`, kept as `trial.store`; with `change.uncompiled` nothing is compiled."""
    started = time.monotonic()
    name = str(trial.store)
    use_threads()
    if trial.change.uncompiled:
        torch.compiler.set_stance("force_eager")
    if trial.fill:
        fill_fresh_memory(trial.fill)
    if trial.change.capture_only:
        hook_backend_calls(lambda call: call.graph)
    namespace = as_main(trial.graph, name)
    announce("run")
    signature, text = None, ""
    try:
        exec(compile(trial.graph, name, "exec", dont_inherit=True), namespace)
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        signature = signature_of_crash(status, "run") if status else None
    except BaseException as error:
        forget_this_frame(error)
        signature, text = signature_of_failure(error), traceback.format_exc()
    wrong = shown(namespace[WRONG]) if WRONG in namespace and signature is None else None
    seen = Seen(cpu=round(time.process_time(), 3), wrong=wrong)
    return Outcome(signature, time.monotonic() - started, text=text, seen=seen)


def shown(values: Any) -> str:
    """What a program holds as wrong, as text: equal for values that differ in nothing that matters.

    >>> shown([(1, 2), [3.0]])
    "['tuple (1, 2)', 'list [3.0]']"
    """
    try:
        return str([re.sub(NO_MATTER, "", f"{type(each).__name__} {each!r}") for each in values])
    except Exception as error:  # a user's __repr__ may do anything
        return f"cannot be shown: {type(error).__name__}"


def as_main(text: str, name: str) -> dict[str, Any]:
    """The namespace of a program that is about to run as `python name`; this process is that program's from now on."""
    main = types.ModuleType("__main__")
    main.__file__ = name
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv[:] = [name]
    sys.path[0] = os.path.dirname(name)
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    return main.__dict__


def signature_of_failure(error: BaseException) -> Signature:
    """What a program's last exception is: one of capture, of compiling, or of running.

    >>> signature_of_failure(ValueError("no such thing here")).phase
    'run'
    """
    chain: list[BaseException] = [error]
    while (inner := chain[-1].__cause__ or getattr(chain[-1], "inner_exception", None)) is not None:
        if inner in chain:
            break
        chain.append(inner)
    of_dynamo = [type(e).__name__ for e in chain if type(e).__module__ == "torch._dynamo.exc"]
    if any(type(each).__name__ in _COMPILERS for each in chain):
        return signature_of_exception(error, "compile_error", "compile")
    if of_dynamo or any(_under_capture(each) for each in chain):
        return signature_of_exception(error, "capture_error", "capture")
    return signature_of_exception(error, "runtime_error", "run")


def _under_capture(error: BaseException) -> bool:
    """Whether an error was raised while Dynamo looked at a frame: by others that it calls, mostly."""
    if hasattr(error, "real_stack"):
        return True
    frames = traceback.walk_tb(error.__traceback__)
    return any(
        Path(frame.f_code.co_filename).parts[-2:] == ("_dynamo", "convert_frame.py") for frame, _ in frames
    )


def forget_this_frame(error: BaseException) -> None:
    """Takes the frame that caught an error out of its traceback."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
