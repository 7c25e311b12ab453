"""A failing program as a repro: its own lines, and an answer in the last line and the exit status."""

from __future__ import annotations

import ast
import itertools
import re
from dataclasses import replace

from torchsleuth._version import __version__
from torchsleuth.core.cases.record import WRONG
from torchsleuth.core.protocol.failures import CallForm
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.torch_core.repro.script import (
    Marks,
    clock_of_hang,
    expected_literal,
    holds,
    marks_of,
    modules_of_clock,
    one_line,
    template,
)

# In a case: the program as it was given or recorded, standing alone.
PROGRAM = "program.py"
# Of a value as Python shows it, what says nothing: addresses, and who would compute its gradient.
NO_MATTER = r"0x\w+|, grad_fn=<\w+>"
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)


def program_script(
    program: str,
    signature: Signature,
    text: str,
    torch: str,
    case: str | None = None,
    hung_after: float | None = None,
) -> str:
    """The script of a program that fails as `signature` says; `text` is the traceback of its failure.

    One that hangs ends by itself where it was not done after `hung_after` seconds.

    >>> failure = Signature("runtime_error", "run", ("ValueError",), "no")
    >>> "raise ValueError('no')" in program_script("raise ValueError('no')", failure, "", "2.13.0")
    True
    """
    tree = ast.parse(program)
    imports = list(itertools.takewhile(lambda node: isinstance(node, _IMPORTS), tree.body))
    behind = tree.body[len(imports) :]
    definitions = list(itertools.takewhile(lambda node: isinstance(node, _DEFINITIONS), behind))
    rest = behind[len(definitions) :]
    lines = program.splitlines()
    wrong = signature.kind == "accuracy"
    marks = None if signature.kind in ("crash", "hang", "accuracy") else _marks_of_the_last(signature, text)
    # Without the compiler a script must pass; torch calls it an error that nothing was compiled.
    fullgraph = "fullgraph" in program
    clock = clock_of_hang(replace(signature, phase="compile"), hung_after)
    standard = {"sys", *modules_of_clock(clock), *(["os"] if fullgraph else [])}
    standard |= {*marks.modules, "traceback"} if marks else set()
    standard |= {"os", "re", "subprocess"} if wrong else set()
    written = [line for node in imports for line in _text(lines, node)]
    future = [line for line in written if line.startswith("from __future__")]
    ours = [f"import {', '.join(sorted(standard))}", *["import torch"] * fullgraph]
    first = _begin(definitions[0]) if definitions else 0
    last = definitions[-1].end_lineno or 0 if definitions else 0
    about = f"torch {torch.partition('+')[0]}, torchsleuth {__version__}"
    return template("program.py.jinja").render(
        summary=one_line(signature.summary),
        about=about + (f", case {case}" if case else ""),
        imports=list(dict.fromkeys([*future, *ours, *written])),
        expected=expected_literal(signature),
        definitions="\n".join(lines[first:last]) if definitions else "",
        body=lines[_begin(rest[0]) :] if rest else ["pass"],
        fullgraph=fullgraph,
        clock=clock,
        wrong=WRONG if wrong else "",
        seeded="manual_seed" not in program,
        no_matter=f"r{NO_MATTER!r}".replace("\\\\", "\\"),
        marks=marks.expression if marks else "",
        reproduced=repr(f"REPRODUCED: {signature.summary}"),
    )


def _marks_of_the_last(signature: Signature, text: str) -> Marks:
    """What tells the failure by its last error, where that can: Dynamo hides from a program what it came from."""
    last = re.split(r"^(?:The above exception was|During handling of)[^\n]*:$", text, flags=re.M)[-1]
    marks = marks_of(signature, last)
    return marks if not last or holds(marks.expression, last) else marks_of(signature, text)


def program_of_call(form: CallForm) -> str:
    """The program of one form of a recorded call (`watched/call_source.py`): imports, definitions, values, the call.

    >>> program_of_call(CallForm(("import torch",), "x = torch.ones(2)", setup=(), call=("x.sin()",)))
    'import torch\\n\\nx = torch.ones(2)\\n\\nx.sin()\\n'
    """
    lines = form.source.splitlines()
    nodes = [node for node in ast.parse(form.source).body if isinstance(node, _IMPORTS)]
    moved = ["\n".join(_text(lines, node)) for node in nodes]
    for node in nodes:
        for number in range(node.lineno - 1, node.end_lineno or node.lineno):
            lines[number] = ""
    parts = ["\n".join(dict.fromkeys([*form.imports, *moved])), "\n".join(lines).strip("\n")]
    parts.append("\n".join([*form.setup, *form.call]))
    return "\n\n".join(part for part in parts if part) + "\n"


def _text(lines: list[str], node: ast.stmt) -> list[str]:
    return lines[node.lineno - 1 : node.end_lineno]


def _begin(node: ast.stmt) -> int:
    """The line, from 0, with which a statement begins, its decorators included."""
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)]) - 1
