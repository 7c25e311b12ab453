"""The process in which a recorded frame is run again: `python -c ... program.py --answer FILE [--eager] [--pdb]`.

The program runs as `python program.py` would run it; how it ended is written to the file, as JSON. Nothing of ours is
on the stack that a person sees: not in the traceback, nor under the debugger.
"""

from __future__ import annotations

import argparse
import ast
import json
import pdb
import sys
import traceback
from pathlib import Path

import torch

from torchsleuth.child.program import as_main, forget_this_frame, signature_of_failure


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
