"""A whole program run as `python script.py` would run it, and how it ended: in a trial, or for a person once more.

Its text need not lie on disk: Python finds the source of its functions under the name of the script. `main` is the
process of `torchsleuth replay`, in which a recorded frame is run again; how that ended is written to a file. Nothing of
ours is on the stack that a person sees: not in the traceback, nor under the debugger.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import json
import linecache
import os
import pdb
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
from torchsleuth.core.cases.record import WRONG
from torchsleuth.core.processes.sealed import fill_fresh_memory
from torchsleuth.core.protocol.failures import signature_of_crash
from torchsleuth.core.protocol.trials import Outcome, Seen, Trial
from torchsleuth.script_runtime.runner import _repro_wait
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
        _repro_wait()
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


def as_main(text: str, name: str) -> dict[str, object]:
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


def main(arguments: list[str]) -> None:
    """Started by `supervise.replay`; status 0 where nothing failed, 1 where something did."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=Path)
    parser.add_argument("--answer", type=Path, required=True)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--pdb", action="store_true")
    options = parser.parse_args(arguments)
    text = options.program.read_text(encoding="utf-8")
    if options.eager:
        torch.compiler.set_stance("force_eager")
    code = compile(text, str(options.program), "exec", dont_inherit=True)
    namespace = as_main(text, str(options.program))
    signature = None
    try:
        if options.pdb and options.eager:  # where nothing fails, the way there is what there is to see
            _stopped_at_the_call(text, str(options.program)).run(code, namespace)
        else:
            exec(code, namespace)
    except Exception as error:
        forget_this_frame(error)
        signature = signature_of_failure(error)
        traceback.print_exception(error)
        if options.pdb:
            debugger = pdb.Pdb(readrc=False)  # commands that lie in the current folder are not ours to run
            debugger.reset()
            debugger.interaction(None, error.__traceback__)
    options.answer.write_text(json.dumps(None if signature is None else signature.to_json()))
    sys.exit(0 if signature is None else 1)


def _stopped_at_the_call(text: str, name: str) -> pdb.Pdb:
    """A debugger that stops at the last statement of the program, which is the call."""
    debugger = pdb.Pdb(skip=["torch", "torch.*"], readrc=False)
    debugger.set_break(name, ast.parse(text).body[-1].lineno, temporary=True)
    debugger.rcLines.append("continue")
    return debugger
